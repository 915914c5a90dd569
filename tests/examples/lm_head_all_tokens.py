"""Traces on which `lm-head-all-tokens` must speak, and look-alikes on which it must not.

GLM-5 at TP-8: the LM head of a rank is [19,360, 6,144].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM, TO_FLOAT
from tests.plain_op_names import ARGMAX, BACKWARD, SOFTMAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

BF16 = "c10::BFloat16"
TOKENS, WIDTH, VOCABULARY = 4096, 6144, 19_360
LAYERS = 10
PREFILL = f"step[EXTEND bs=1 toks={TOKENS}]"
ARGMAX_OF_ONE = Work(ARGMAX, 9, "aten::argmax", [[1, VOCABULARY], []], [BF16, ""], grid=(1, 1, 1))


def layer(rows: int = TOKENS) -> tuple[Work, ...]:
    matmul = Work(GEMM, max(250 * rows / TOKENS, 12), "aten::mm", [[rows, WIDTH], [WIDTH, 2048]], [BF16, BF16])
    return Work(NORM, 20, "norm"), matmul, Work(ATTENTION, 300, "attend"), Work(ADD, 20, "aten::add")


def head(rows: int, us: float) -> Work:
    return Work(GEMM, us, "aten::mm", [[rows, WIDTH], [WIDTH, VOCABULARY]], [BF16, BF16])


def step(*tail: Work, annotation: str = PREFILL, rows: int = TOKENS) -> Kineto:
    return eager([[*layer(rows) * LAYERS, *tail]] * 3, annotation=annotation)


def all_tokens_then_a_slice() -> Kineto:
    return step(head(TOKENS, 1250), ARGMAX_OF_ONE)


def all_tokens_cast_before_the_slice() -> Kineto:
    cast = copied(TO_FLOAT, 100, (TOKENS, VOCABULARY), BF16, "float")
    return step(head(TOKENS, 1250), cast, ARGMAX_OF_ONE)


def all_tokens_of_an_unannotated_program() -> Kineto:
    ids = Work(
        "indexSelectLargeIndex", 10, "aten::embedding", [[VOCABULARY, WIDTH], [2, TOKENS // 2]], [BF16, "long int"]
    )
    return eager([[ids, *layer() * LAYERS, head(TOKENS, 1250), ARGMAX_OF_ONE]] * 3, annotation="ProfilerStep#1")


def without_shapes(tail: Sequence[Work]) -> Kineto:
    bare = [work._replace(dims=None, types=None) for work in (*layer() * LAYERS, *tail)]
    return eager([bare] * 3, annotation=PREFILL)


def head_that_takes_as_long_as_all_tokens_do() -> Kineto:
    # 2 × 4,096 × 6,144 × 19,360 operations at 790 TFLOP/s: 1,233 µs
    return without_shapes([head(TOKENS, 1250), ARGMAX_OF_ONE])


def last_token_only() -> Kineto:
    return step(head(1, 60), ARGMAX_OF_ONE)


def last_token_only_without_shapes() -> Kineto:
    return without_shapes([head(1, 60), ARGMAX_OF_ONE])


def log_probabilities_of_the_prompt() -> Kineto:
    softmax = Work(SOFTMAX, 200, "aten::_log_softmax", [[TOKENS, VOCABULARY], [], []], ["float", "", ""])
    return step(head(TOKENS, 1250), softmax, ARGMAX_OF_ONE)


def log_probabilities_without_shapes() -> Kineto:
    softmax = Work(SOFTMAX, 200, "aten::_log_softmax", grid=(TOKENS, 1, 1))
    return without_shapes([head(TOKENS, 1250), softmax, ARGMAX_OF_ONE])


def decode_with_a_row_for_each_request() -> Kineto:
    return step(head(256, 120), ARGMAX_OF_ONE, annotation="step[DECODE bs=256]", rows=256)


def drafted_tokens_that_are_verified() -> Kineto:
    return step(head(8 * 16, 90), ARGMAX_OF_ONE, annotation="step[TARGET_VERIFY bs=16 toks=128]", rows=128)


def many_prompts_with_a_row_each() -> Kineto:
    return step(head(64, 80), ARGMAX_OF_ONE, annotation="step[EXTEND bs=64 toks=4096]")


def training() -> Kineto:
    backward = Work(BACKWARD, 30, "aten::silu_backward")
    return step(head(TOKENS, 1250), backward, ARGMAX_OF_ONE)


FIRING: list[Callable[[], Kineto]] = [
    all_tokens_then_a_slice,
    all_tokens_cast_before_the_slice,
    all_tokens_of_an_unannotated_program,
    head_that_takes_as_long_as_all_tokens_do,
]
QUIET: list[Callable[[], Kineto]] = [
    last_token_only,
    last_token_only_without_shapes,
    log_probabilities_of_the_prompt,
    log_probabilities_without_shapes,
    decode_with_a_row_for_each_request,
    drafted_tokens_that_are_verified,
    many_prompts_with_a_row_each,
    training,
]
