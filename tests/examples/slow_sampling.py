"""Traces on which `slow-sampling` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, eager, graphed
from tests.kernel_names import ADD, ATTENTION, GEMM, NORM
from tests.plain_op_names import (
    ARGMAX,
    MASK,
    NARROW_SORT,
    ONE_KERNEL,
    SCAN,
    SCATTER,
    SOFTMAX,
    TOP_K,
    WIDE_SORT,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kineto import Kineto

VOCABULARY = 154_880
LAYER = (Work(NORM, 3, "norm"), Work(GEMM, 20, "aten::mm"), Work(ATTENTION, 20, "attend"), Work(ADD, 3, "aten::add"))
HEAD = Work(GEMM, 60, "aten::mm")


def batch(rows: int) -> str:
    return f"step[DECODE bs={rows}]"


def sorted_logits(rows: int | None) -> list[Work]:
    """Return softmax, sort in four passes, running sum, mask, scatter and argmax, with shapes where rows are told."""

    def of(kernel: str, us: float, op: str) -> Work:
        shape = None if rows is None else [[rows, VOCABULARY], []]
        return Work(kernel, us, op, shape, None if rows is None else ["float", "Scalar"])

    return [
        of(SOFTMAX, 12, "aten::_softmax"),
        *[of(WIDE_SORT, 40, "aten::sort")] * 4,
        of(SCAN, 30, "aten::cumsum"),
        of(MASK, 6, "aten::masked_fill_"),
        of(SCATTER, 20, "aten::scatter_"),
        of(ARGMAX, 8, "aten::argmax"),
    ]


def decoding(sampler: Sequence[Work], rows: int = 16) -> Kineto:
    return eager([[*LAYER * 20, HEAD, *sampler]] * 3, annotation=batch(rows))


def top_p_by_sorting() -> Kineto:
    return decoding(sorted_logits(16))


def top_p_by_sorting_without_shapes() -> Kineto:
    return decoding(sorted_logits(None), 8)


def sampler_within_the_graph() -> Kineto:
    return graphed([[*LAYER * 20, HEAD, *sorted_logits(None)]] * 3, annotation=batch(64))


def unannotated_program_whose_shapes_tell_the_batch() -> Kineto:
    return eager([[*LAYER * 20, HEAD, *sorted_logits(32)]] * 3, annotation="ProfilerStep#1")


def few_requests_for_which_a_sort_is_fastest() -> Kineto:
    return decoding(sorted_logits(7), 7)


def few_requests_of_a_program_that_annotates_nothing() -> Kineto:
    return eager([[*LAYER * 20, HEAD, *sorted_logits(1)]] * 3, annotation="ProfilerStep#1")


def top_k_alone_which_sorts_what_it_selected() -> Kineto:
    shape, types = [[16, VOCABULARY], []], ["float", "Scalar"]
    select = Work(TOP_K, 60, "aten::topk", shape, types)
    order = Work(NARROW_SORT, 8, "aten::sort", [[16, 50], []], types)
    return decoding([select, Work(WIDE_SORT, 60, "aten::topk", shape, types), order, Work(ARGMAX, 3, "aten::argmax")])


def one_kernel_that_samples() -> Kineto:
    return decoding([Work(SOFTMAX, 12, "aten::_softmax"), Work(ONE_KERNEL, 60, "sgl_kernel::top_k_top_p")], 64)


def argmax_of_greedy_requests() -> Kineto:
    return decoding([Work(ARGMAX, 9, "aten::argmax")], 256)


def sorts_of_routed_tokens_before_the_head() -> Kineto:
    route = Work(WIDE_SORT, 20, "aten::sort")
    return eager([[*(*LAYER, route) * 20, HEAD, Work(ARGMAX, 9, "aten::argmax")]] * 3, annotation=batch(64))


def sort_that_takes_little_of_a_long_step() -> Kineto:
    return eager([[*LAYER * 1000, HEAD, *sorted_logits(16)]] * 3, annotation=batch(16))


FIRING: list[Callable[[], Kineto]] = [
    top_p_by_sorting,
    top_p_by_sorting_without_shapes,
    sampler_within_the_graph,
    unannotated_program_whose_shapes_tell_the_batch,
]
QUIET: list[Callable[[], Kineto]] = [
    few_requests_for_which_a_sort_is_fastest,
    few_requests_of_a_program_that_annotates_nothing,
    top_k_alone_which_sorts_what_it_selected,
    one_kernel_that_samples,
    argmax_of_greedy_requests,
    sorts_of_routed_tokens_before_the_head,
    sort_that_takes_little_of_a_long_step,
]
