"""The tensor-parallel size of real traces and of none."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.decode_steps import Work, eager

import stepscope
from stepscope.model import Deployment, KVPoolLayout, ModelSpec, load_model
from stepscope.pipeline.attribute import WorkGroup, attribute
from stepscope.pipeline.cost.infer import infer_slots, infer_tp, settle
from stepscope.pipeline.link import link
from stepscope.pipeline.load import load
from stepscope.pipeline.steps import find_steps

TRACES = Path(__file__).parents[4] / "shared" / "traces"
SGLANG = TRACES / "sglang-h200"


def inferred(path: Path, spec: ModelSpec) -> int | None:
    linked = link(load(path))
    return infer_tp(spec, attribute(linked, find_steps(linked)).groups)


@pytest.mark.parametrize(
    ("trace", "model", "tp"),
    [
        ("h200-decode/eager-cast.json.gz", "glm-5", 8),
        ("sglang-h200/flashinfer-fp8-eager-stacks.trace.json.gz", "glm-5", 8),
        ("sglang-h200/flashinfer-fp8-eager-stacks.trace.json.gz", str(SGLANG / "model-config.json"), 1),
        ("h200-decode/graph-cast.json.gz", "glm-5", None),  # no shapes
        ("public/TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "glm-5", None),  # another model
    ],
)
def test_the_group_is_the_one_that_the_products_fit(trace: str, model: str, tp: int | None) -> None:
    if not (TRACES / trace).is_file():
        pytest.skip("the shared traces are not here")
    assert inferred(TRACES / trace, load_model(model)) == tp


def test_a_diagnosis_says_what_it_inferred() -> None:
    """lab.py indexes a pool of 495,552 rows on each layer; its products are those of one rank of eight."""
    trace = TRACES / "h200-decode" / "eager-gather.json.gz"
    if not trace.is_file():
        pytest.skip("the shared traces are not here")
    model = stepscope.diagnose([trace], model="glm-5").model
    assert model is not None
    assert (model.tp, model.pool_slots) == (8, 495_552)
    assert len([note for note in model.notes if "inferred" in note or "are those of the tensor" in note]) == 2


def test_of_several_traces_the_model_holds_what_none_contradicts(tmp_path: Path) -> None:
    """GLM-5 on 8 and on 4 ranks: 64 heads of 256 are 2048 or 4096 values a rank, the shared expert 512 or 1024."""

    def recorded(name: str, *widths: tuple[int, int]) -> Path:
        products = [Work("nvjet_a", 9, "aten::mm", [[1, k], [k, n]], ["c10::BFloat16"] * 2) for k, n in widths]
        return eager([products] * 4).save(tmp_path / name)

    eight, four = recorded("8", (2048, 2048), (6144, 512)), recorded("4", (4096, 6144), (6144, 1024))
    silent = recorded("none", (3, 5))

    def ranks(*traces: Path) -> int | None:
        model = stepscope.diagnose(traces, model="glm-5").model
        assert model is not None
        return model.tp

    assert [ranks(eight), ranks(four), ranks(silent)] == [8, 4, None]
    assert [ranks(silent, eight), ranks(eight, four)] == [8, None]


def test_what_was_told_is_not_inferred() -> None:
    told = Deployment.of("glm-5", 4, None)
    assert settle(told, []) == told
    assert settle(Deployment.of(None, None, None), []).parallel is None


def test_two_tensors_with_the_pools_row_leave_its_slots_open() -> None:
    def indexes(slots: int) -> WorkGroup:
        group = Mock(spec=WorkGroup)
        group.op, group.input_shapes = "aten::index", [[slots, 1, 576], []]
        return group

    pool = KVPoolLayout(latent=512, rope=64)
    assert infer_slots(pool, [indexes(4096), indexes(4096)]) == 4096
    assert infer_slots(pool, [indexes(4096), indexes(8192)]) is None
    assert infer_slots(pool, []) is None
