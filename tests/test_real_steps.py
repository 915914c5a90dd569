"""Steps of real traces: those that annotations mark, worked out by plain loops, against those found without any."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from stepscope import diagnose, load
from stepscope.pipeline.health import check_health
from stepscope.pipeline.link import link
from stepscope.pipeline.steps import find_steps
from tests.answers import rules

if TYPE_CHECKING:
    from stepscope.document import Diagnosis
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Steps

TRACES = Path(__file__).parents[2] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside the repository")

LAB, SGLANG = "h200-decode", "sglang-h200"
PUBLIC = "public/TraceLens/inference"
TRAINING = {
    "public/kineto-tb_plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz": 6,
    "public/HTA/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 5,
    "public/HTA/nccl_parser_config/nccl_data.json.gz": 3,
}
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


@cache
def events(trace: str) -> list[dict[str, Any]]:
    return [
        event
        for event in json.loads(gzip.decompress((TRACES / trace).read_bytes()))["traceEvents"]
        if event.get("ph") == "X"
    ]


class Marked(NamedTuple):
    """What one annotation marks, in µs as recorded."""

    kernels: int
    gpu_begin: float
    gpu_end: float


@cache
def marked(trace: str, prefix: str) -> list[Marked]:
    """Return the steps by the contract: what was launched from an annotation until the next one begins."""
    of_host = [e for e in events(trace) if e["cat"] in {"user_annotation", "cpu_op", "Operator"}]
    starts = sorted(float(e["ts"]) for e in of_host if e["name"].startswith(prefix))
    launched: dict[int, float] = {}
    for event in events(trace):
        if event["cat"] in {"cuda_runtime", "cuda_driver", "Runtime"} and "correlation" in event["args"]:
            launched.setdefault(event["args"]["correlation"], float(event["ts"]))
    rows: list[list[tuple[float, float]]] = [[] for _ in starts]
    for event in events(trace):
        if event["cat"] in GPU_WORK and event["args"]["correlation"] in launched:
            step = bisect_right(starts, launched[event["args"]["correlation"]]) - 1
            if step >= 0:
                rows[step].append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
    return [Marked(len(row), min(b for b, _ in row), max(e for _, e in row)) for row in rows]


def durations(steps: list[Marked]) -> list[float]:
    return [after.gpu_begin - step.gpu_begin for step, after in pairwise(steps)]


@cache
def without(trace: str, *, host: bool = True) -> tuple[Linked, Steps]:
    """Return the steps of a trace whose annotations are taken out, or all that the host recorded."""
    loaded = load(TRACES / trace)
    loaded = replace(loaded, annotations=loaded.annotations.clear())
    if not host:
        loaded = replace(loaded, launches=loaded.launches.clear(), ops=loaded.ops.clear(), frames=loaded.frames.clear())
    linked = link(loaded)
    return linked, find_steps(linked)


def found(trace: str, *, host: bool = True) -> list[Marked]:
    linked, steps = without(trace, host=host)
    begin = linked.kernels["start_ns"].to_numpy() / 1e3
    end = begin + linked.kernels["duration_ns"].to_numpy() / 1e3
    rows = [np.flatnonzero(steps.step_of_kernel == index) for index in range(len(steps.steps))]
    return [Marked(row.size, float(begin[row].min()), float(end[row].max())) for row in rows]


def spans(steps: list[Marked]) -> list[float]:
    return [step.gpu_end - step.gpu_begin for step in steps]


@pytest.mark.parametrize(
    ("trace", "steps", "by"),
    [
        (f"{LAB}/eager-cast.json.gz", 3, "kernel sequence"),
        (f"{LAB}/eager-gather.json.gz", 3, "kernel sequence"),
        (f"{LAB}/graph-cast.json.gz", 10, "graph launches"),
        (f"{LAB}/graph-gather.json.gz", 10, "graph launches"),
        (f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz", 5, "graph launches"),
        (f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz", 5, "graph launches"),
        (f"{SGLANG}/flashinfer-fp8-eager-stacks.trace.json.gz", 3, "kernel sequence"),
    ],
)
def test_decode_steps_without_annotations_are_those_that_the_annotations_mark(trace: str, steps: int, by: str) -> None:
    told, seen = marked(trace, "step["), found(trace)
    assert without(trace)[1].found_by == by
    assert len(told) == len(seen) == steps
    assert median(spans(seen)) == pytest.approx(median(spans(told)), rel=0.01)
    assert median(durations(seen)) == pytest.approx(median(durations(told)), rel=0.01)
    # they begin within the work between two steps: a server prepares a step before it marks it, and after the launch
    offset = [ours.gpu_begin - theirs.gpu_begin for ours, theirs in zip(seen, told, strict=True)]
    assert max(offset) - min(offset) < 0.01 * median(spans(told))
    assert [step.kernels for step in seen] == pytest.approx([step.kernels for step in told], abs=7)


@pytest.mark.parametrize(("trace", "steps"), TRAINING.items())
def test_iterations_of_a_training_are_found_too(trace: str, steps: int) -> None:
    told, seen = marked(trace, "ProfilerStep"), found(trace)
    assert len(told) == len(seen) == steps
    assert spans(seen) == pytest.approx(spans(told), rel=1e-5)  # a float holds times since 1970 to 0.25 µs
    assert [step.kernels for step in seen] == [step.kernels for step in told]


@pytest.mark.parametrize(
    ("trace", "steps", "prefix"),
    [
        (f"{LAB}/eager-cast.json.gz", 3, "step["),
        (f"{LAB}/graph-cast.json.gz", 10, "step["),
        (f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz", 5, "step["),
        (f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz", 5, "step["),
        (f"{SGLANG}/flashinfer-fp8-eager-stacks.trace.json.gz", 3, "step["),
        *((trace, steps, "ProfilerStep") for trace, steps in TRAINING.items()),
    ],
)
def test_rows_of_the_gpu_alone_tell_the_same_steps(trace: str, steps: int, prefix: str) -> None:
    told, seen = marked(trace, prefix), found(trace, host=False)
    assert without(trace, host=False)[1].found_by == "kernel sequence"
    assert len(seen) == steps
    assert median(spans(seen)) == pytest.approx(median(spans(told)), rel=0.01)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (f"{LAB}/eager-cast-stacks.json.gz", "390 equal layers of 37 kernels, and nothing marks the steps"),
        (f"{PUBLIC}/sglang_decode/sglang_Qwen3-8B_decode.json.gz", "one replay"),
        (f"{PUBLIC}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", "one prefill of 36 layers"),
        (f"{PUBLIC}/vllm_decode_full/graph_execution.json.gz", "one replay"),
        ("public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "one pass of 24 layers"),
        ("public/TraceLens/h100/gaunernst_bert-small-uncased__1016001.json.gz", "one pass of 4 layers"),
        ("public/TraceLens/mi210/gpu_only_trace/gpu_only_trace.json.gz", "no kernel repeats evenly"),
        ("public/TraceLens/torch_compile_triton/trace.json.gz", "12 kernels"),
        ("public/HTA/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz", "98 kernels, 4 passes"),
        ("public/HTA/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz", "6 kernels"),
        ("public/HTA/timeline_analysis/sampled_rank-0.json.gz", "2 iterations, of which a part was kept"),
    ],
)
def test_single_passes_are_not_cut_at_their_layers(trace: str, why: str) -> None:
    _, steps = without(trace)
    assert (steps.found_by, len(steps.steps)) == ("recording", 1), why


def test_the_layers_of_the_eager_lab_are_told_from_steps() -> None:
    """The trap itself: 5 × 78 layers of 37 kernels, of which each runs once or twice a layer."""
    names = [
        e["name"] + str(e["args"].get("grid"))
        for e in events(f"{LAB}/eager-cast-stacks.json.gz")
        if e["cat"] == "kernel"
    ]
    counts = sorted({names.count(name) for name in set(names)})
    assert (len(names), counts) == (5 * 78 * 37, [5 * 78, 2 * 5 * 78])


@pytest.mark.parametrize(
    ("trace", "hole_ms"),
    [
        (f"{PUBLIC}/sglang_decode/sglang_Qwen3-8B_decode.json.gz", 463.3),
        (f"{PUBLIC}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", 493.3),
    ],
)
def test_the_hole_at_the_start_is_no_step_time_without_annotations_either(trace: str, hole_ms: float) -> None:
    gpu = sorted((float(e["ts"]), float(e["dur"])) for e in events(trace) if e["cat"] in GPU_WORK)
    (first, lasted), (second, _) = gpu[:2]
    assert (second - first - lasted) / 1e3 == pytest.approx(hole_ms, abs=0.05)
    _, steps = without(trace)
    assert steps.hole_ns / 1e6 == pytest.approx(hole_ms, abs=0.05)
    assert np.flatnonzero(steps.step_of_kernel < 0).tolist() == [0]


@pytest.mark.parametrize(
    "trace", [f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz", f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz"]
)
def test_no_step_of_a_graph_trace_holds_the_hole_at_its_start(trace: str) -> None:
    gpu = sorted((float(e["ts"]), float(e["dur"])) for e in events(trace) if e["cat"] in GPU_WORK)
    longest = max((later - begin - lasted, later) for (begin, lasted), (later, _) in pairwise(gpu))
    assert longest[0] > 1000, "a ms and more, of which nothing was recorded"
    since_first = found(trace)[0].gpu_begin - without(trace)[0].kernels["start_ns"][0] / 1e3
    assert since_first >= longest[1] - gpu[0][0] - 1


def without_annotations(trace: str, folder: Path) -> Path:
    document = json.loads(gzip.decompress((TRACES / trace).read_bytes()))
    marks = {"user_annotation", "gpu_user_annotation"}
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") not in marks]
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return path


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (f"{PUBLIC}/sglang_decode/sglang_Qwen3-8B_decode.json.gz", ["layout-copy"]),
        (f"{PUBLIC}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", ["layout-copy"]),
        (f"{SGLANG}/flashinfer-bf16-graph.trace.json.gz", []),
        (f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz", ["kv-pool-cast"]),
        (f"{LAB}/graph-cast.json.gz", ["kv-pool-cast"]),
        (f"{LAB}/eager-cast.json.gz", ["launch-bound", "kv-pool-cast"]),
    ],
)
def test_findings_without_annotations_are_those_with_them(trace: str, expected: list[str], tmp_path: Path) -> None:
    with_them: Diagnosis = diagnose([TRACES / trace], model="glm-5", tp=8)
    diagnosis = diagnose([without_annotations(trace, tmp_path)], model="glm-5", tp=8)
    assert sorted(rules(diagnosis)) == sorted(rules(with_them)) == sorted(expected)
    (row,), (told,) = diagnosis.steps, with_them.steps
    assert row.phase == "unknown"
    assert row.duration_us.median == pytest.approx(told.duration_us.median, rel=0.01)
    assert row.gpu_busy_us == pytest.approx(told.gpu_busy_us, rel=0.01)


@pytest.mark.parametrize(
    ("trace", "batch", "tokens"),
    [
        (f"{SGLANG}/flashinfer-fp8-graph.trace.json.gz", 1, 1),
        (f"{PUBLIC}/sglang_decode/sglang_Qwen3-8B_decode.json.gz", 32, 32),
        (f"{PUBLIC}/vllm_decode_full/graph_execution.json.gz", 32, 32),
        (f"{PUBLIC}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", 15, 15360),
        ("public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 16, 16 * 559),  # ids of [16, 559]
        ("public/TraceLens/h100/gaunernst_bert-small-uncased__1016001.json.gz", 1, 141),  # ids of [1, 141]
        ("public/kineto-tb_plugin/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz", None, None),
    ],
)
def test_requests_and_tokens_of_a_step(trace: str, batch: int | None, tokens: int | None) -> None:
    (row,) = diagnose([TRACES / trace]).steps
    assert (row.batch_size, row.tokens) == (batch, tokens)


def test_a_prefills_tokens_by_its_shapes_are_those_of_its_annotation() -> None:
    _, steps = without(f"{PUBLIC}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz")
    assert [(step.tokens, step.batch_size) for step in steps.steps] == [(15360, None)]  # [EXTEND bs=15 toks=15360]


@pytest.mark.parametrize("trace", sorted(p.relative_to(TRACES).as_posix() for p in TRACES.rglob("*.json.gz")))
def test_every_kernel_of_every_trace_is_in_a_step_or_reported_as_outside(trace: str) -> None:
    if "execution_trace" in trace:
        pytest.skip("no profiler trace")
    linked = link(load(TRACES / trace))
    steps = find_steps(linked)
    of_kernel = steps.step_of_kernel
    assert of_kernel.shape == (linked.kernels.height,)
    assert ((of_kernel >= -1) & (of_kernel < len(steps.steps))).all()
    told = {warning.code: warning.count for warning in check_health(linked, steps, None)}
    assert told.get("outside-steps", 0) == (of_kernel < 0).sum()
    left_out = {index for window in steps.windows.values() for index in (*window.outliers, *window.other_size)}
    assert not left_out, "no step of these traces is an outlier, or of another size than the others of its phase"
