"""Every rule: documented, with traces on which it speaks and look-alikes on which it keeps quiet; its thresholds."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests import published_cases
from tests.answers import finding, loud, rules
from tests.decode_steps import BETWEEN_GRAPHS_US, STEP, Work, copied, eager, graphed
from tests.examples.kv_pool_cast import BF16, FP8, GRAPH_CAST, REST, WRITE
from tests.kernel_names import ADD, ATTENTION, FP8_WRITE, TO_BF16
from tests.kineto import Kineto
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.document import Confidence, Severity
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from stepscope.document import Diagnosis

    Built = Kineto | Sequence[Kineto]

SECTIONS = [
    "What it looks like",
    "Why it happens",
    "What looks the same and is harmless",
    "Control",
    "Fixes",
]
CONTRACT = {
    *("kv-pool-cast", "redundant-cast", "weight-rematerialised", "layout-copy", "fill-in-step", "unfused-elementwise"),
    *("launch-bound", "host-gap", "hidden-sync", "jit-or-allocator-in-step", "slow-sampling", "lm-head-all-tokens"),
    *("gemm-below-roofline", "low-precision-slower", "slow-collective", "rank-skew", "padding"),
    "prefill-blocks-decode",
}
MEDIAN_LINES, MOST_LINES = 120, 200
PHASES = {"decode", "prefill", "mixed", "warm-up", "unknown"}


def examples(rule: Rule, kind: str) -> list[Callable[[], Built]]:
    module = f"tests.examples.{rule.id.replace('-', '_')}"
    found: list[Callable[[], Built]] = getattr(import_module(module), kind, []) if find_spec(module) else []
    return found


def module_of(rule: Rule) -> ModuleType:
    return import_module(f"stepscope.pipeline.detect.rules.{rule.id.replace('-', '_')}")


def complaints(rule: Rule) -> Iterator[str]:
    """Say what a rule lacks before it may be added."""
    sections = re.findall(r"^## (.+)\n+(?=\S)(?!## )", rule.explanation, re.MULTILINE)
    if sections != SECTIONS:
        yield f"{rule.id}: its explanation has the sections {sections}, each with text, not {SECTIONS}"
    if rule.explanation.strip().startswith("## "):
        yield f"{rule.id}: its explanation does not begin with a sentence that says what is wrong"
    if not rule.fixes:
        yield f"{rule.id}: its explanation says no fix"
    if rule.id not in CONTRACT:
        yield f"{rule.id}: its id is not one that others rely on"
    if not rule.title or not rule.needs or not rule.phases or not PHASES.issuperset(rule.phases):
        yield f"{rule.id}: it has no title, no needs, or phases that do not exist"
    for kind in ("FIRING", "QUIET"):
        if not examples(rule, kind):
            yield f"{rule.id}: it has no example in {kind}"


def cases(kind: str) -> list[object]:
    return [
        pytest.param(rule.id, build, id=f"{rule.id}: {build.__name__}")
        for rule in all_rules()
        for build in examples(rule, kind)
    ]


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_is_documented_and_has_examples(rule: Rule) -> None:
    assert list(complaints(rule)) == []


def test_a_rule_lies_in_a_file_of_its_name() -> None:
    for rule in all_rules():
        module = module_of(rule)
        assert module.RULE is rule
        assert module.__doc__ == rule.explanation


def test_a_rule_is_read_in_one_go() -> None:
    lengths = {rule.id: len(getsource(module_of(rule)).splitlines()) for rule in all_rules()}
    assert median(lengths.values()) <= MEDIAN_LINES, "what has a subject of its own goes to a module beside rules/"
    assert {rule: lines for rule, lines in lengths.items() if lines > MOST_LINES} == {}


def test_the_first_three_rules_are_there() -> None:
    assert {"kv-pool-cast", "redundant-cast", "launch-bound"} <= {rule.id for rule in all_rules()}


def test_a_rule_without_documentation_or_examples_is_refused() -> None:
    known = all_rules()[0]
    bare = Rule("slow-thing", "Something is slow.", known.check, needs=())
    assert len(list(complaints(bare))) == 6
    for section, missing in ((r"(## Control\n)[^#]*", 1), (r"(## Fixes\n)(?s:.*)", 2)):
        emptied = Rule(known.id, re.sub(section, r"\1", known.explanation), known.check, known.needs)
        assert len(list(complaints(emptied))) == missing
    unheard = Rule("slow-thing", known.explanation, known.check, known.needs)
    assert len(list(complaints(unheard))) == 3


@pytest.mark.parametrize(("rule", "build"), cases("FIRING"))
def test_it_fires(rule: str, build: Callable[[], Built]) -> None:
    diagnosis = diagnosed(build())
    assert rule in loud(diagnosis)
    found = finding(diagnosis, rule)
    assert found.control
    assert found.fix
    if found.what_if is None:  # it does not recur in every step
        assert found.severity is not Severity.CRITICAL
    else:
        assert found.what_if.step_us.low <= found.what_if.step_us.expected <= found.what_if.step_us.high


@pytest.mark.parametrize(("rule", "build"), cases("QUIET"))
def test_it_keeps_quiet_without_a_model(rule: str, build: Callable[[], Built]) -> None:
    assert rule not in loud(diagnosed(build(), model=None, tp=None))


# kv-pool-cast


def pool_cast(slots: int, us: float = 120, layers: int = 78) -> Kineto:
    return eager([[WRITE, copied(TO_BF16, us, (slots, 1, 576), FP8, BF16), *REST] * layers] * 3)


def test_a_pool_cast_of_less_than_4_mib_is_none() -> None:
    # 2,428 rows × 576 × 3 bytes = 4,195,584 bytes; 4 MiB are 4,194,304
    assert rules(diagnosed(pool_cast(2428)))[0] == "kv-pool-cast"
    assert "kv-pool-cast" not in rules(diagnosed(pool_cast(2427)))


def test_a_pool_with_less_than_twice_the_live_tokens_is_about_what_must_be_read() -> None:
    assert "kv-pool-cast" in rules(diagnosed(pool_cast(65_536), context=32_768))
    assert "kv-pool-cast" not in rules(diagnosed(pool_cast(65_536), context=32_769))


@pytest.mark.parametrize(("calls", "fires"), [(77, False), (78, True), (79, True), (80, False), (156, True)])
def test_with_a_model_a_graphs_cast_must_run_once_in_every_layer(calls: int, *, fires: bool) -> None:
    trace = graphed([[WRITE, GRAPH_CAST, *REST] * calls] * 3)
    assert ("kv-pool-cast" in rules(diagnosed(trace))) is fires


@pytest.mark.parametrize(("calls", "fires"), [(3, False), (4, True)])
def test_without_a_model_a_graphs_cast_must_run_in_several_layers(calls: int, *, fires: bool) -> None:
    trace = graphed([[WRITE, GRAPH_CAST, *REST] * calls] * 3)
    assert ("kv-pool-cast" in rules(diagnosed(trace, model=None, tp=None))) is fires


def test_without_a_model_a_graphs_cast_counts_only_beside_writes_of_fp8() -> None:
    trace = graphed([[GRAPH_CAST, *REST] * 78] * 3)
    assert "kv-pool-cast" not in rules(diagnosed(trace, model=None, tp=None))


def test_a_million_and_one_slots_are_read_off_a_grid() -> None:
    # 1,000,001 × 576 = 576,000,576 elements; 1,125,002 blocks of 512 hold 576,000,513 to 576,001,024
    cast = Work(TO_BF16, 1750, grid=(1_125_002, 1, 1))
    found = diagnosed(graphed([[WRITE, cast, *REST] * 78] * 3)).findings[0]
    assert found.rule == "kv-pool-cast"
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence.tensor == "KV pool, 1,000,001 slots × (512 latent + 64 rope)"
    assert found.evidence.bytes_per_call == 1_728_001_728
    assert any("1,125,002 blocks" in note and "576,000,513 to 576,001,024" in note for note in found.notes)


def test_deepseek_v3_with_131072_slots() -> None:
    """sglang#35291: 5 steps of 31.52 ms, 61 casts a step of 225.79 µs each; the other kernels fill the rest."""
    layers, cast_us, step_us = 61, 225.79, 31_520.0

    def fill(between_graphs: float = 0) -> Work:
        return Work(ATTENTION, (step_us - between_graphs - layers * cast_us) / layers / 2)

    cast = copied(TO_BF16, cast_us, (131_072, 1, 576), FP8, BF16)._replace(grid=(147_456, 1, 1))  # 512 elements each
    eagerly = [[fill(), cast, fill()] * layers] * 5
    as_graphs = [[WRITE._replace(us=0.0), fill(BETWEEN_GRAPHS_US), cast, fill(BETWEEN_GRAPHS_US)] * layers] * 5
    for trace, confidence in (
        (eager(eagerly), Confidence.HIGH),
        (eager(eagerly, annotation="execute_context_0(0)_generation_1(1)"), Confidence.HIGH),
        (graphed(as_graphs), Confidence.MEDIUM),
    ):
        diagnosis = diagnosed(trace, model="deepseek-v3", tp=8, gpu="h200", context=1000)
        (steps,) = diagnosis.steps
        assert (steps.count, steps.phase) == (5, "decode")
        assert steps.duration_us.median == pytest.approx(31_520, abs=1)
        assert rules(diagnosis) == ["kv-pool-cast"]
        found = diagnosis.findings[0]
        assert (found.severity, found.confidence) == (Severity.CRITICAL, confidence)
        assert found.time_us_per_step == pytest.approx(13_770, abs=5)
        assert found.share_of_step == pytest.approx(0.437, abs=0.0005)
        assert found.evidence.calls_per_step == 61
        assert found.evidence.bytes_per_call == pytest.approx(226.5e6, rel=0.0005)
        assert found.evidence.achieved_gb_per_s == pytest.approx(1003, abs=1)
        assert found.evidence.tensor == "KV pool, 131,072 slots × (512 latent + 64 rope)"
        assert found.what_if is not None
        # 1,000 of 131,072 rows stay, at the rate of today's casts; 17.68 ms were measured without any
        live_us = 61 * 225.79 * 1000 / 131_072
        assert found.what_if.step_us.expected == pytest.approx(31_520 - 61 * 225.79 + live_us, abs=5)
        assert found.what_if.gain_fraction == pytest.approx(0.437 - live_us / 31_520, abs=0.0005)
        assert "--attention-backend flashmla --page-size 64" in found.fix[0].what


# redundant-cast


def test_a_cast_of_less_than_4_mib_is_not_redundant() -> None:
    def trace(columns: int) -> Kineto:
        cast = copied(TO_BF16, 40, (1024, columns), "float", "c10::BFloat16")
        return eager([[cast, *REST] * 10] * 3)

    # 1,024 × 683 × 6 bytes = 4,196,352 bytes; with 682 columns 4,190,208; 4 MiB are 4,194,304
    assert rules(diagnosed(trace(683))) == ["redundant-cast"]
    assert rules(diagnosed(trace(682))) == []


@pytest.mark.parametrize(("tokens", "found"), [(127, ["redundant-cast"]), (128, [])])
def test_a_graphs_cast_that_may_be_of_activations_is_not_redundant(tokens: int, found: list[str]) -> None:
    # o_proj has 12,582,912 elements, 128 × 16 × 6,144: what 128 tokens may have, each 16 times its hidden state
    cast = Work(TO_BF16, 40, grid=(24_576, 1, 1))
    steps = [[cast, Work(ADD, 3), *REST] * 10] * 3
    assert rules(diagnosed(graphed(steps, annotation=f"step[DECODE bs={tokens}]"))) == found


def weight_cast() -> Diagnosis:
    cast = copied(TO_BF16, 40, (6144, 2048), FP8, BF16)
    return diagnosed(eager([[cast, *REST] * 10] * 3))


def test_a_cast_of_a_known_weights_shape_is_sure_and_another_is_inferred() -> None:
    known = finding(weight_cast(), "weight-rematerialised")
    assert known.confidence is Confidence.HIGH
    assert known.evidence.tensor == "weight o_proj [6144, 2048]"
    other = copied(TO_BF16, 40, (6144, 2049), FP8, BF16)
    inferred = finding(diagnosed(eager([[other, *REST] * 10] * 3)), "redundant-cast")
    assert inferred.confidence is Confidence.MEDIUM
    assert any("no addresses" in note for note in inferred.notes)


def test_a_graphs_cast_of_as_many_elements_as_two_weights_names_both() -> None:
    cast = Work(TO_BF16, 40, grid=(24_576, 1, 1))  # 12,582,912 elements: 2,048 × 6,144 and 6,144 × 2,048
    found = finding(diagnosed(graphed([[cast, *REST] * 10] * 3)), "weight-rematerialised")
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence.tensor == "weight q_a_proj or o_proj, 12,582,912 elements"
    assert found.evidence.input_shape is None


def test_a_graphs_cast_of_as_many_elements_as_one_weight_names_it_with_its_shape() -> None:
    cast = Work(TO_BF16, 900, grid=(786_432, 1, 1))  # 402,653,184 elements: 256 × 6,144 × 256
    found = finding(diagnosed(graphed([[cast, *REST] * 10] * 3)), "weight-rematerialised")
    assert found.confidence is Confidence.MEDIUM
    assert found.evidence.tensor == "weight w2 [256, 6144, 256]"
    assert found.evidence.input_shape == [256, 6144, 256]


def test_a_weights_cast_has_its_bytes_and_rate() -> None:
    evidence = finding(weight_cast(), "weight-rematerialised").evidence
    assert evidence.calls_per_step == 10
    assert evidence.bytes_per_call == 6144 * 2048 * 3
    assert evidence.achieved_gb_per_s == pytest.approx(943.7, abs=0.1)  # 37,748,736 bytes in 40 µs


# launch-bound


def launched(us: float, *, pace: float = 10, kernels: int = 200) -> Kineto:
    return eager([[Work(ADD, us)] * kernels] * 3, pace=pace)


def test_a_gpu_that_is_idle_for_a_fifth_of_the_step_is_not_launch_bound() -> None:
    assert rules(diagnosed(launched(7.9))) == ["launch-bound"]
    assert rules(diagnosed(launched(8.1))) == []


@pytest.mark.parametrize(
    ("build", "wall_us", "gpu_us"),
    [
        (published_cases.launched_one_by_one, 19_960, 5_770),
        (published_cases.launched_while_the_gpu_is_busy, 30_170, 29_070),
        (published_cases.replayed_in_one_launch, 6_430, 5_940),
    ],
)
def test_reported_steps_take_what_was_reported(build: Callable[[], Kineto], wall_us: float, gpu_us: float) -> None:
    """sglang-omni#2182; what is found in them is in tests/catalogue."""
    (steps,) = diagnosed(build()).steps
    assert steps.duration_us.median == pytest.approx(wall_us, abs=1)
    assert steps.gpu_busy_us == pytest.approx(gpu_us, abs=1)


def test_few_gaps_say_nothing_about_launching() -> None:
    assert rules(diagnosed(launched(3, kernels=25))) == ["launch-bound"]
    assert rules(diagnosed(launched(3, kernels=15))) == []


@pytest.mark.parametrize(("launches", "fires"), [(50, True), (30, False)])
def test_half_of_the_gaps_must_end_right_after_a_launch(launches: int, *, fires: bool) -> None:
    trace = Kineto()
    for begin in (0, 2000, 4000):
        trace.annotation(STEP, begin, 1900)
        graph = trace.launch(begin, 20, name="cudaGraphLaunch")
        for number in range(41):  # 40 gaps of the device's own
            trace.kernel("graphed", begin + 30 + 10 * number, 4, correlation=graph)
        for number in range(launches):
            trace.call("launched", at=begin + 500 + 20 * number, duration=4)
    assert ("launch-bound" in rules(diagnosed(trace))) is fires


def test_stacks_make_launch_bound_doubtful() -> None:
    with_stacks = finding(diagnosed(eager([[Work(ADD, 2)] * 100] * 3, stacks=True)), "launch-bound")
    without = finding(diagnosed(eager([[Work(ADD, 2)] * 100] * 3)), "launch-bound")
    assert (with_stacks.confidence, without.confidence) == (Confidence.LOW, Confidence.MEDIUM)
    assert any("profiler itself" in note for note in with_stacks.notes)
    assert not any("profiler itself" in note for note in without.notes)


def test_a_step_that_the_host_would_bind_once_the_cast_is_gone_says_so() -> None:
    cast = copied(TO_BF16, 850, (495_552, 1, 576), FP8, BF16)
    diagnosis = diagnosed(eager([[cast, *([Work(ADD, 2)] * 40)] * 10] * 3, pace=20))
    host = finding(diagnosis, "launch-bound")
    assert host.title.startswith("Without kv-pool-cast the host is the limit")
    assert host.what_if is not None
    assert host.what_if.hidden_by == ["kv-pool-cast"]


def test_a_write_of_fp8_alone_is_no_cast_of_the_pool() -> None:
    assert rules(diagnosed(graphed([[Work(FP8_WRITE, 2), *REST] * 78] * 3))) == []


def test_a_weight_as_wide_as_the_pools_row_is_no_pool() -> None:
    cast = copied(TO_BF16, 40, (6144, 576), FP8, BF16)  # kv_a_proj of GLM-5, transposed
    diagnosis = diagnosed(eager([[cast, *REST] * 10] * 3))
    assert "kv-pool-cast" not in rules(diagnosis)
    assert finding(diagnosis, "weight-rematerialised").evidence.tensor == "weight kv_a_proj [576, 6144]"


def test_a_large_cast_without_shape_or_model_is_not_passed_over() -> None:
    cast = Work(TO_BF16, 40, grid=(24_577, 1, 1))
    build = graphed([[cast, *REST] * 10] * 3)
    (said,) = (said for said in diagnosed(build, model=None, tp=None).could_not_check if said.rule == "redundant-cast")
    assert "no weight is known" in said.missing
    assert "redundant-cast" not in {said.rule for said in diagnosed(build).could_not_check}


def test_casts_that_overlap_count_their_time_once() -> None:
    trace = Kineto()
    for begin in (0, 1000, 2000):
        trace.annotation(STEP, begin, 900)
        for call in range(2):
            at = begin + 10 + 20 * call
            trace.op("aten::copy_", at - 1, 7, dims=[[4096, 3000], [4096, 3000], []], types=[BF16, FP8, "Scalar"])
            correlation = trace.launch(at)
            trace.kernel(TO_BF16, begin + 100 + 50 * call, 100, correlation=correlation, stream=7 + call)
    assert finding(diagnosed(trace), "redundant-cast").time_us_per_step == 150


def test_what_several_traces_lack_is_said_once() -> None:
    build = eager([[WRITE, copied(TO_BF16, 120, (65_536, 1, 576), FP8, BF16), *REST] * 5] * 3)
    with TemporaryDirectory() as folder:
        paths = [build.save(Path(folder) / name) for name in ("a.json", "b.json")]
        said = diagnose(paths, model="glm-5", tp=8).could_not_check
    assert said
    assert len(said) == len(set(said))
