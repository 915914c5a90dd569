"""Replayed kernels get the ops of another trace: built ones, and the real pairs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.answers import finding
from tests.kineto import Kineto

from stepscope import diagnose, load
from stepscope.document import Confidence
from stepscope.errors import UsageError
from stepscope.pipeline.attribute.join import Donor, Joined, JoinMethod, join, join_within
from stepscope.pipeline.link import link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.document import Diagnosis
    from stepscope.trace import Trace

POOL = [495_552, 1, 576]
LAYERS = 78
CAST = ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>", 850.0, (557_496, 1, 1))
LAYER = (("norm", 2.0, (1, 1, 1)), ("gemm", 9.0, (64, 1, 1)), CAST, ("attention", 7.0, (132, 1, 1)))
STEP = (("embedding", 2.0, (1, 1, 1)), *LAYER * LAYERS, ("argmax", 3.0, (1, 1, 1)))
OPS = {"embedding": "aten::embedding", "norm": "aten::rms_norm", "gemm": "aten::mm", "argmax": "aten::argmax"}


def saved(trace: Kineto, path: Path) -> Trace:
    return load(trace.save(path / "trace.json"))


def replayed(path: Path, kernels: Sequence[tuple[str, float, Sequence[int] | None]] = STEP, *, steps: int = 4) -> Trace:
    trace, at = Kineto(), 10.0
    for _ in range(steps):
        trace.annotation("step[DECODE bs=1]", at - 5, 100)
        at = trace.replay(kernels, at=at) + 30.0  # type: ignore[arg-type]
    return saved(trace, path)


def add_pass(trace: Kineto, at: float, kernels: Sequence[tuple[str, float, Sequence[int]]] = STEP) -> float:
    """Add an eager pass, attention outside every op, and return when it ends."""
    trace.frame("model.py(10): forward", at - 5, 10.0 * len(kernels))
    end = at
    for number, (name, us, grid) in enumerate(kernels):
        copies = name == CAST[0]
        dims = [POOL, POOL] if copies else [[1, 576]]
        types = ["c10::BFloat16", "c10::Float8_e4m3fn"] if copies else ["c10::BFloat16"]
        op = "aten::copy_" if copies else OPS.get(name)
        end = trace.call(name, at=at + 10.0 * number, duration=us, op=op, dims=dims, types=types, grid=grid, stream=3)
    return max(end, at + 10.0 * len(kernels)) + 20


def eager(path: Path, *passes: Sequence[tuple[str, float, Sequence[int]]]) -> Trace:
    trace, at = Kineto(), 10.0
    for kernels in passes or (STEP, STEP):
        at = add_pass(trace, at, kernels)
    return saved(trace, path)


def joined(trace: Trace, donor: Trace) -> Joined:
    return join(link(trace), Donor.of(link(donor)))


def op_names(of: Joined) -> list[str | None]:
    return of.linked.with_op_facts(of.linked.kernels)["op_name"].cast(pl.String).to_list()


def expected_op(name: str) -> str | None:
    return "aten::copy_" if name == CAST[0] else OPS.get(name)


def test_every_kernel_of_every_replay_gets_the_op_of_its_twin(tmp_path: Path) -> None:
    result = joined(replayed(tmp_path), eager(tmp_path))
    assert result.method is JoinMethod.EAGER_TWIN
    assert result.aligned.all()
    assert op_names(result) == [expected_op(name) for name, *_ in STEP] * 4
    assert result.warnings == ()


def test_a_kernel_without_an_op_in_the_twin_is_aligned_but_has_none(tmp_path: Path) -> None:
    result = joined(replayed(tmp_path), eager(tmp_path))
    attention = (result.linked.kernels["name"].cast(pl.String) == "attention").to_numpy()
    assert result.aligned[attention].all()
    assert attention.sum() == 4 * LAYERS
    assert result.linked.kernels.filter(attention)["donor_op"].is_null().all()


def test_kernels_of_one_layer_come_from_one_pass_in_order(tmp_path: Path) -> None:
    result = joined(replayed(tmp_path, steps=1), eager(tmp_path, STEP, STEP, STEP))
    ops = result.linked.kernels["donor_op"].drop_nulls().to_list()
    assert ops == list(range(ops[0], ops[0] + len(ops)))


def test_what_only_one_side_has_is_passed_over(tmp_path: Path) -> None:
    fused = [kernel for number, kernel in enumerate(STEP) if number % 7]
    fill = ("fill", 1.0, (3, 1, 1))
    with_extra = [part for i, kernel in enumerate(fused) for part in ((kernel,) if i % 5 else (kernel, fill))]
    result = joined(replayed(tmp_path, with_extra, steps=1), eager(tmp_path))
    names = [name for name, *_ in with_extra]
    assert result.aligned.tolist() == [name != "fill" for name in names]
    assert op_names(result) == [expected_op(name) for name in names]
    (warning,) = result.warnings
    assert warning.code == "capture-trace-differs"
    assert warning.message.startswith("83.3% of the replayed kernels")


def test_the_pass_with_the_same_grids_is_taken(tmp_path: Path) -> None:
    other = [(name, us, (grid[0] * 2, 1, 1)) for name, us, grid in STEP]
    result = joined(replayed(tmp_path), eager(tmp_path, other, STEP, other))
    ops = result.linked.kernels["donor_op"].drop_nulls()
    in_a_pass = sum(expected_op(name) is not None for name, *_ in STEP)
    assert result.aligned.all()
    assert (ops.min(), ops.max()) == (in_a_pass, 2 * in_a_pass - 1)


def test_another_model_joins_nothing_and_says_how_much_agrees(tmp_path: Path) -> None:
    other = [(f"other_{name}" if name in {"gemm", "attention"} else name, us, grid) for name, us, grid in STEP]
    other = [kernel for kernel in other if kernel[2] != CAST[2]]
    result = joined(replayed(tmp_path), eager(tmp_path, other))
    assert result.method is None
    assert result.linked.kernels["donor_op"].is_null().all()
    (warning,) = result.warnings
    assert warning.code == "capture-trace-differs"
    assert warning.message.startswith("25.5% ")  # 78 norms, embedding and argmax of 314


def test_a_trace_without_replays_needs_no_other(tmp_path: Path) -> None:
    result = joined(eager(tmp_path), eager(tmp_path))
    assert [warning.code for warning in result.warnings] == ["capture-trace-unused"]


@pytest.mark.parametrize("empty", [Kineto(), Kineto(device=None)])
def test_a_donor_without_kernels_joins_nothing(tmp_path: Path, empty: Kineto) -> None:
    empty.annotation("nothing", 1, 2)
    result = joined(replayed(tmp_path), saved(empty, tmp_path))
    assert result.method is None
    assert [warning.code for warning in result.warnings] == ["capture-trace-differs"]


def test_two_streams_interleave_differently_in_each_replay(tmp_path: Path) -> None:
    trace = Kineto()
    sides = [(f"main_{i % 5}", f"side_{i % 3}") for i in range(60)]
    for number, lag in enumerate((0.0, 7.0, 33.0)):
        at = 1000.0 * (number + 1)
        correlation = trace.launch(at - 900 if number == 0 else at - 50, name="cudaGraphLaunch")
        for i, (main, side) in enumerate(sides):
            trace.kernel(main, at + 10 * i, 5, correlation=correlation, stream=7)
            trace.kernel(side, at + 10 * i + lag, 3, correlation=correlation, stream=8)
    twin = Kineto()
    for i, pair in enumerate(sides):
        for name, stream in zip(pair, (20, 21), strict=True):
            at = 10.0 + 40.0 * i + stream
            twin.call(name, at=at * 2, duration=5, op=f"aten::{name}_{i}", stream=stream)
    result = joined(saved(trace, tmp_path), saved(twin, tmp_path))
    assert result.aligned.all()
    kernels = result.linked.with_op_facts(result.linked.kernels)
    for stream, of_stream in enumerate(zip(*sides, strict=True)):
        names = kernels.filter(kernels["stream"] == 7 + stream)["op_name"]
        expected = [f"aten::{name}_{i}" for i, name in enumerate(of_stream)]
        assert names.cast(pl.String).to_list() == expected * 3


def rocm_capture(path: Path, *captures: Sequence[str]) -> Trace:
    """Return launches into graphs: they name kernels, and nothing runs."""
    trace, at = Kineto(), 10.0
    for names in captures:
        for name in names:
            trace.op(f"aten::{name}", at - 1, 6, dims=[[32, 8]], types=["c10::BFloat16"])
            trace.launch(at, name="hipLaunchKernel", kernel=name)
            at += 10
        trace.launch(at, name="hipStreamEndCapture")
        at += 10
    return saved(trace, path)


def rocm_replay(path: Path, names: Sequence[str]) -> Trace:
    return replayed(path, [(name, 5.0, None) for name in names])


def test_rocm_s_launches_under_capture_tell_names_in_order(tmp_path: Path) -> None:
    names = [f"kernel_{i % 7}" for i in range(200)]
    result = joined(rocm_replay(tmp_path, names[2:]), rocm_capture(tmp_path, names))
    assert result.method is JoinMethod.CAPTURE_LAUNCHES
    assert result.aligned.all()
    assert op_names(result) == [f"aten::{name}" for name in names[2:]] * 4
    assert result.warnings == ()


def test_names_alone_must_agree_almost_all(tmp_path: Path) -> None:
    names = [f"kernel_{i % 7}" for i in range(200)]
    other = [name if i % 10 else f"gemm_{i}" for i, name in enumerate(names)]
    result = joined(rocm_replay(tmp_path, names), rocm_capture(tmp_path, other))
    assert result.method is None
    assert [warning.code for warning in result.warnings] == ["capture-trace-differs"]


def test_names_alone_do_not_tell_which_of_several_captures(tmp_path: Path) -> None:
    names = [f"kernel_{i % 7}" for i in range(200)]
    result = joined(rocm_replay(tmp_path, names), rocm_capture(tmp_path, names, names))
    assert [warning.code for warning in result.warnings] == ["capture-trace-ambiguous"]


def test_what_a_graph_replayed_in_the_donor_tells_nothing(tmp_path: Path) -> None:
    donor, at = Kineto(), 10.0
    for _ in range(3):
        at = donor.replay(STEP, at=at) + 60
    add_pass(donor, at)
    result = joined(replayed(tmp_path), saved(donor, tmp_path))
    assert op_names(result) == [expected_op(name) for name, *_ in STEP] * 4


def mixed(path: Path, eager_step: Sequence[tuple[str, float, Sequence[int]]]) -> Trace:
    """Return a trace of an eager step and three replays."""
    trace = Kineto()
    at = add_pass(trace, 10, eager_step)
    for _ in range(3):
        at = trace.replay(STEP, at=at) + 60
    return saved(trace, path)


def test_eager_steps_of_the_same_trace_tell_the_ops_of_replayed_ones(tmp_path: Path) -> None:
    result = join_within(link(mixed(tmp_path, STEP)))
    assert result.method is JoinMethod.EAGER_TWIN
    assert op_names(result) == [expected_op(name) for name, *_ in STEP] * 4
    assert result.linked.kernels["donor_op"].null_count() == len(STEP) + 3 * LAYERS


def test_eager_steps_of_another_size_tell_nothing(tmp_path: Path) -> None:
    other = [(name, us, (2, 1, 1) if name == "norm" else grid) for name, us, grid in STEP]
    linked = link(mixed(tmp_path, other))
    result = join_within(linked)
    assert (result.linked, result.method, result.warnings) == (linked, None, ())


def test_joined_casts_are_diagnosed_as_if_they_were_linked(tmp_path: Path) -> None:
    replayed(tmp_path)
    graph = (tmp_path / "trace.json").rename(tmp_path / "graph.json")
    eager(tmp_path)
    source = tmp_path / "model.py"
    source.write_text("\n" * 9 + "def forward(pool):\n    return pool.copy_(pool)\n")
    diagnosis = diagnose(
        [graph, graph], model="glm-5", tp=8, context=1024, capture_trace=tmp_path / "trace.json", sources=[tmp_path]
    )
    for info in diagnosis.traces:
        assert info.attribution.join_method == "eager-twin"
        assert not {"no-shapes", "no-stacks"} & {warning.code for warning in info.warnings}
    casts = [found for found in diagnosis.findings if found.rule == "kv-pool-cast"]
    assert [found.trace for found in casts] == [0, 1]
    for found in casts:
        assert found.confidence is Confidence.HIGH
        assert (found.evidence.op, found.evidence.input_shape) == ("aten::copy_", POOL)
        assert [frame.function for frame in found.evidence.frames] == ["forward"]
        assert found.evidence.statement_at == "model.py:11"


def test_a_capture_trace_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    replayed(tmp_path)
    with pytest.raises(UsageError, match="absent"):
        diagnose([tmp_path / "trace.json"], capture_trace=tmp_path / "absent.json")


TRACES = Path(__file__).parents[4] / "shared" / "traces"
LAB, SGLANG, PUBLIC = TRACES / "h200-decode", TRACES / "sglang-h200", TRACES / "public" / "TraceLens" / "inference"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")


@cache
def of_real(trace: Path, donor: Path) -> Diagnosis:
    model = {} if trace.is_relative_to(PUBLIC) else {"model": "glm-5", "tp": 8}
    return diagnose([trace], capture_trace=donor, sources=[LAB], **model)  # type: ignore[arg-type]


GRAPH = LAB / "graph-cast.json.gz"
TWIN = LAB / "eager-cast-stacks.json.gz"
SGLANG_GRAPH = SGLANG / "flashinfer-fp8-graph.trace.json.gz"
SGLANG_CAPTURE = SGLANG / "flashinfer-fp8-graph-capture.trace.json.gz"
SGLANG_TWIN = SGLANG / "flashinfer-fp8-eager-stacks.trace.json.gz"
QWEN = (
    PUBLIC / "sglang_decode" / "sglang_Qwen3-8B_decode.json.gz",
    PUBLIC / "sglang_decode" / "capture_traces" / "bs_32_rank0.json.gz",
)
VLLM = (
    PUBLIC / "vllm_decode_full" / "graph_execution.json.gz",
    PUBLIC / "vllm_decode_full" / "graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
)


@real
@pytest.mark.parametrize(
    ("trace", "donor", "aligned", "replayed_kernels"),
    [
        (GRAPH, TWIN, 0.999, 10 * 2886),
        (GRAPH, LAB / "eager-cast.json.gz", 0.999, 10 * 2886),
        (LAB / "graph-gather.json.gz", LAB / "eager-gather.json.gz", 0.999, 10 * 2886),
        (SGLANG_GRAPH, SGLANG_CAPTURE, 0.999, 5 * 2390),
        (SGLANG_GRAPH, SGLANG_TWIN, 0.999, 5 * 2390),
        (*QWEN, 0.987, 544),
        (*VLLM, 0.969, 421),
    ],
)
def test_every_replayed_kernel_of_a_real_pair_lines_up(
    trace: Path, donor: Path, aligned: float, replayed_kernels: int
) -> None:
    linked = link(load(trace))
    result = join(linked, Donor.of(link(load(donor))))
    duration = linked.kernels["duration_ns"].to_numpy()
    assert int(result.aligned.sum()) == replayed_kernels
    assert duration[result.aligned].sum() / duration.sum() >= aligned
    assert result.warnings == ()


@real
@pytest.mark.parametrize(
    ("pair", "method", "joined", "with_op"),
    [
        ((GRAPH, TWIN), "eager-twin", 0.999, 0.9999),
        ((SGLANG_GRAPH, SGLANG_CAPTURE), "capture-launches", 0.999, 0.970),
        ((SGLANG_GRAPH, SGLANG_TWIN), "eager-twin", 0.999, 0.970),
        (QWEN, "capture-launches", 0.987, 0.998),  # the rest was launched one by one, with ops of its own
        (VLLM, "capture-launches", 0.969, 0.9999),
    ],
)
def test_an_op_is_known_wherever_the_other_trace_has_one(
    pair: tuple[Path, Path], method: str, joined: float, with_op: float
) -> None:
    attribution = of_real(*pair).traces[0].attribution
    assert attribution.join_method == method
    assert attribution.joined is not None
    assert joined <= attribution.joined < joined + 0.001
    assert attribution.with_op == pytest.approx(with_op, abs=5e-4)


@real
def test_the_graph_s_cast_has_the_line_that_the_eager_twin_recorded() -> None:
    found = finding(of_real(GRAPH, TWIN), "kv-pool-cast")
    assert found.confidence is Confidence.HIGH
    assert found.evidence.input_shape == POOL
    assert found.evidence.statement_at == "lab.py:21"


@real
@pytest.mark.parametrize("donor", [SGLANG_CAPTURE, SGLANG_TWIN], ids=["capture", "twin"])
def test_sglang_s_cast_has_the_pool_s_shape(donor: Path) -> None:
    found = finding(of_real(SGLANG_GRAPH, donor), "kv-pool-cast")
    assert found.confidence is Confidence.HIGH
    assert found.evidence.input_shape == [495_553, 1, 576]
    assert found.evidence.calls_per_step == 78
    if donor == SGLANG_TWIN:
        assert found.evidence.frames[-1].function == "forward_decode"
        assert found.evidence.frames[-1].line == 580


@real
@pytest.mark.parametrize(("trace", "donor"), [(GRAPH, VLLM[1]), (SGLANG_GRAPH, TWIN), (GRAPH, SGLANG_TWIN)])
def test_a_real_trace_of_another_model_joins_nothing(trace: Path, donor: Path) -> None:
    info = of_real(trace, donor).traces[0]
    (warning,) = [warning for warning in info.warnings if warning.code == "capture-trace-differs"]
    assert re.match(r"\d+\.\d% of the replayed kernels", warning.message)
    assert info.attribution.join_method == "grid"


@real
@pytest.mark.parametrize("trace", ["graph-cast.json.gz", "graph-gather.json.gz"])
@pytest.mark.parametrize("donor", ["eager-cast-stacks.json.gz", "eager-gather.json.gz"])
def test_the_small_casts_of_a_joined_step_are_no_redundant_ones(trace: str, donor: str) -> None:
    assert "redundant-cast" not in {found.rule for found in of_real(LAB / trace, LAB / donor).findings}
