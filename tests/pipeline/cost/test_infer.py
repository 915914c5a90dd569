"""The tensor-parallel size of real traces and of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.model import ModelSpec, load_model
from stepscope.pipeline.attribute import attribute
from stepscope.pipeline.cost.infer import infer_tp
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
