"""How many tokens are live: as told, else from the step's annotation, else from a gather, else not known."""

from __future__ import annotations

import pytest
from tests.decode_steps import Work, eager, graphed
from tests.examples.kv_pool_cast import FP8, POOL, POOL_CAST, WRITE
from tests.kernel_names import ADD, GATHER
from tests.stages import case_of, diagnosed

from stepscope.model import Deployment
from stepscope.pipeline.attribute.live_tokens import LiveTokens, live_tokens

VLLM_DETAILED = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"
VLLM = "execute_context_0(0)_generation_1(1)"
SLOTS = POOL[0]
GATHERED = Work(GATHER, 5, "aten::index", [POOL, [1000]], [FP8, "long int"], grid=(1000, 1, 1))


def live(annotation: str, *work: Work, context: int | None = None) -> LiveTokens | None:
    case = case_of(eager([[*work, Work(ADD, 2)]] * 3, annotation=annotation))
    return live_tokens(Deployment.of(None, None, context), case.step, case.groups, SLOTS)


def test_the_context_that_was_told_counts_once_for_each_request_and_before_all_else() -> None:
    told = live(VLLM_DETAILED, GATHERED, context=2000)
    assert told is not None
    assert told.tokens == 32 * 2000
    assert "--context" in told.source


def test_the_steps_annotation_comes_next() -> None:
    annotated = live(VLLM_DETAILED, GATHERED)
    assert annotated is not None
    assert annotated.tokens == 55_086
    assert "annotation" in annotated.source


@pytest.mark.parametrize("annotation", ["step[DECODE bs=4]", VLLM])
def test_then_the_rows_that_a_gather_reads_from_the_pool(annotation: str) -> None:
    gathered = live(annotation, GATHERED)
    assert gathered is not None
    assert gathered.tokens == 1000
    assert "gather" in gathered.source


def test_a_context_without_a_batch_size_tells_nothing_by_itself() -> None:
    gathered = live("forward", GATHERED, context=2000)
    assert gathered is not None
    assert gathered.tokens == 1000


@pytest.mark.parametrize(
    "work",
    [
        GATHERED._replace(dims=[[SLOTS + 1, 1, 576], [1000]]),  # from another tensor
        GATHERED._replace(op="aten::gather"),
        GATHERED._replace(kernel=ADD),
        GATHERED._replace(op=None),
    ],
)
def test_what_is_no_gather_from_the_pool_tells_nothing(work: Work) -> None:
    assert live("step[DECODE bs=4]", work) is None


def test_live_tokens_that_are_not_known_are_said_to_be() -> None:
    diagnosis = diagnosed(graphed([[WRITE, Work(POOL_CAST.kernel, 120, grid=(73_728, 1, 1))] * 78] * 3))
    evidence = diagnosis.findings[0].evidence
    assert (evidence.live_tokens, evidence.live_fraction, evidence.floor_us_per_step) == (None, None, None)
    (row,) = (row for row in diagnosis.could_not_check if "live" in row.missing)
    assert row.rule == "kv-pool-cast"
    assert "--context" in row.how_to_capture


def test_live_tokens_give_the_floor_of_what_must_be_cast() -> None:
    diagnosis = diagnosed(eager([[WRITE, POOL_CAST, GATHERED] * 78] * 3))
    evidence = diagnosis.findings[0].evidence
    assert evidence.live_tokens == 1000
    assert evidence.live_fraction == pytest.approx(1000 / 65_536)
    assert evidence.floor_us_per_step == pytest.approx(1000 * 576 * 3 * 78 / 4300e9 * 1e6)
