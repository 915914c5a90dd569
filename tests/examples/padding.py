"""Traces on which `padding` must speak, and look-alikes on which it must not.

GLM-5 at TP-8: 256 experts of which a token takes 8, 75 layers of them, 9,437,184 bytes an expert on a rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, eager, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM, OF_CLASS
from tests.plain_op_names import ARGMAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

BF16 = "c10::BFloat16"
LAYERS = 20
SILU = "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>), true>"
EXPERTS_US = 1000.0
"""A layer's. 16 rows hit 102 experts in each of 75 layers: 72 GB, which take at least 16.8 ms, 837 µs in 20 layers."""


def decode(live: int) -> str:
    return f"step[DECODE bs={live}]"


def layer(rows: int, experts_us: float | None = EXPERTS_US, *, shapes: bool = False) -> list[Work]:
    """Return a layer whose kernels run so many rows."""
    multiply = Work(GEMM, 12)
    if shapes:
        multiply = Work(GEMM, 12, "aten::mm", [[rows, 6144], [6144, 2048]], [BF16, BF16])
    experts = [] if experts_us is None else [Work(OF_CLASS["moe-gemm"][0], experts_us, grid=(132, 1, 1))]
    return [
        Work(NORM, 3, grid=(rows, 1, 1)),
        multiply,
        Work(ATTENTION, 15, grid=(132, 1, 1)),
        Work(ADD, 3),
        *experts,
        Work(SILU, 3, grid=(rows, 1, 1)),
    ]


def in_a_graph(live: int, work: Sequence[Work], rows: int = 16) -> Kineto:
    return graphed([[*[*work] * LAYERS, Work(ARGMAX, 8, grid=(rows, 1, 1))]] * 3, annotation=decode(live))


def three_requests_in_a_graph_of_sixteen() -> Kineto:
    return in_a_graph(3, layer(16))


def rows_told_by_the_shapes_of_multiplications() -> Kineto:
    return eager([layer(16, shapes=True) * LAYERS] * 3, annotation=decode(3))


def one_token_of_vllm_in_a_graph_of_eight() -> Kineto:
    # 8 rows hit 57 experts: 40 GB, which take at least 9.4 ms
    work = layer(8, 500) * LAYERS
    return graphed([work] * 3, annotation="execute_context_0(0)_generation_1(1)")


def batch_of_as_many_rows() -> Kineto:
    return in_a_graph(16, layer(16))


def dense_model_bound_by_its_weights() -> Kineto:
    return in_a_graph(3, layer(16, None))


def padded_rows_that_are_sent_to_no_expert() -> Kineto:
    # 3 rows hit 23 experts; in 300 µs a layer the weights that 16 rows hit could not be read
    return in_a_graph(3, layer(16, 300))


def bucket_just_above_the_batch() -> Kineto:
    return in_a_graph(255, layer(256, 2200), 256)  # nearly all experts are hit by both


def drafted_tokens_of_few_requests() -> Kineto:
    return graphed([layer(16) * LAYERS] * 3, annotation="execute_context_0(0)_generation_4(16)")


def norms_whose_grid_nothing_confirms() -> Kineto:
    work = [part._replace(grid=(132, 1, 1)) if part.kernel == SILU else part for part in layer(16)]
    return graphed([work * LAYERS] * 3, annotation=decode(3))


def norms_of_every_head() -> Kineto:
    heads = [Work(NORM, 3, grid=(3 * 8, 1, 1)), Work(SILU, 3, grid=(3 * 8, 1, 1))]
    return in_a_graph(3, [*layer(3), *heads], 3)


def rows_of_all_attention_groups_at_the_experts() -> Kineto:
    gathered = Work(GEMM, 12, "aten::mm", [[24, 6144], [6144, 256]], [BF16, BF16])
    return eager([[*layer(3, shapes=True), gathered, gathered] * LAYERS] * 3, annotation=decode(3))


def prefill() -> Kineto:
    return graphed([layer(4096) * LAYERS] * 3, annotation="step[EXTEND bs=3 toks=4000]")


FIRING: list[Callable[[], Kineto]] = [
    three_requests_in_a_graph_of_sixteen,
    rows_told_by_the_shapes_of_multiplications,
    one_token_of_vllm_in_a_graph_of_eight,
]
QUIET: list[Callable[[], Kineto]] = [
    batch_of_as_many_rows,
    dense_model_bound_by_its_weights,
    padded_rows_that_are_sent_to_no_expert,
    bucket_just_above_the_batch,
    drafted_tokens_of_few_requests,
    norms_whose_grid_nothing_confirms,
    norms_of_every_head,
    rows_of_all_attention_groups_at_the_experts,
    prefill,
]
