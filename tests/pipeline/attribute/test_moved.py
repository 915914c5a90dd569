"""What a copy moves: from its op's shapes, or from the size of its launch."""

from __future__ import annotations

import pytest
from tests.kernel_names import FLOAT_FROM_BF16, GATHER, NORM, STRIDED_COPY, TO_BF16, direct_copy

from stepscope.pipeline.attribute.moved import (
    elements_of_launch,
    moved_by_conversion,
    moved_by_grid,
    moved_by_op,
    parse_lists,
    parse_shapes,
    parse_types,
)

POOL = [495552, 1, 576]


def test_a_copys_first_input_is_its_destination_and_its_second_the_source() -> None:
    moved = moved_by_op("aten::copy_", [POOL, POOL, []], ["BFloat16", "Float8_e4m3fn", None])
    assert moved is not None
    assert (moved.elements_low, moved.elements_high) == (285_437_952, 285_437_952)
    assert moved.shape == (495552, 1, 576)
    assert (moved.source_dtype, moved.target_dtype) == ("Float8_e4m3fn", "BFloat16")
    assert moved.is_cast is True


def test_a_copy_of_the_same_type_is_no_cast_and_one_of_unknown_type_may_be() -> None:
    same = moved_by_op("aten::copy_", [[8], [8]], ["Float", "Float"])
    unknown = moved_by_op("aten::copy_", [[8], [8]], ["Float", None])
    assert same is not None
    assert unknown is not None
    assert same.is_cast is False
    assert unknown.is_cast is None


def test_a_broadcast_copy_moves_what_it_writes() -> None:
    moved = moved_by_op("aten::copy_", [[64, 576], [1, 576]], ["BFloat16", "Float"])
    assert moved is not None
    assert (moved.elements_high, moved.shape) == (64 * 576, (64, 576))


@pytest.mark.parametrize("op", ["aten::mm", "aten::to", "aten::index", "aten::fill_"])
def test_other_ops_move_no_tensor_whole(op: str) -> None:
    assert moved_by_op(op, [POOL, POOL], ["BFloat16", "Float8_e4m3fn"]) is None


def test_a_copy_without_shapes_tells_nothing() -> None:
    assert moved_by_op("aten::copy_", None, None) is None
    assert moved_by_op("aten::copy_", [], []) is None
    assert moved_by_op("aten::copy_", [POOL], ["BFloat16"]) is None


def test_a_conversion_without_a_copy_in_it_moves_its_input_to_the_kernels_type() -> None:
    moved = moved_by_conversion("aten::to", [POOL, [], []], ["Float8_e4m3fn", None, None], TO_BF16)
    assert moved is not None
    assert (moved.shape, moved.source_dtype, moved.target_dtype) == (tuple(POOL), "Float8_e4m3fn", "BFloat16")
    for op, shapes, kernel in (
        ("aten::mul", [POOL], TO_BF16),
        ("aten::to", None, TO_BF16),
        ("aten::to", [POOL], NORM),
        ("aten::to", [[1 << 40]], TO_BF16),
    ):
        assert moved_by_conversion(op, shapes, ["Float8_e4m3fn"] if shapes else None, kernel) is None


def test_a_grid_bounds_the_elements_by_its_last_block() -> None:
    moved = moved_by_grid(TO_BF16, (557496, 1, 1), (128, 1, 1))
    assert moved is not None
    assert (moved.elements_low, moved.elements_high) == (285_437_441, 285_437_952)
    assert moved.shape is None
    assert (moved.source_dtype, moved.target_dtype) == (None, "BFloat16")
    assert moved.is_cast is None


@pytest.mark.parametrize(
    ("elements", "blocks"),
    [(1, 1), (511, 1), (512, 1), (513, 2), (1_000_001 * 576, 1_125_002), (495_552 * 576, 557_496)],
)
def test_the_bounds_hold_the_elements_where_the_last_block_is_partly_filled(elements: int, blocks: int) -> None:
    moved = moved_by_grid(TO_BF16, (blocks, 1, 1), (128, 1, 1))
    assert moved is not None
    assert moved.elements_low <= elements <= moved.elements_high
    assert moved.elements_high - moved.elements_low == 511


def test_the_elements_of_a_thread_are_in_the_kernels_name() -> None:
    moved = moved_by_grid(direct_copy("float", elements_a_thread=8), (10, 1, 1), (128, 1, 1))
    assert moved is not None
    assert (moved.elements_low, moved.elements_high) == (9 * 1024 + 1, 10 * 1024)
    assert moved.target_dtype == "Float"


@pytest.mark.parametrize("kernel", ["fused_moe_kernel", GATHER, FLOAT_FROM_BF16])
def test_only_a_casting_copys_grid_tells_its_elements(kernel: str) -> None:
    assert moved_by_grid(kernel, (557496, 1, 1), (128, 1, 1)) is None


def test_a_launch_without_grid_or_block_tells_nothing() -> None:
    assert moved_by_grid(direct_copy("float"), None, (128, 1, 1)) is None
    assert moved_by_grid(direct_copy("float"), (1, 1, 1), None) is None


def test_recorded_shapes_and_types() -> None:
    assert parse_shapes("[[8, 576], [], [[4], [4]]]") == [[8, 576], [], []]
    assert parse_types('["c10::BFloat16", "Scalar", ""]') == ["BFloat16", None, None]
    assert parse_shapes(None) is None
    assert parse_types(None) is None
    assert parse_shapes('"none"') is None
    assert parse_types("[1]") is None


@pytest.mark.parametrize("sizes", [[10**30, 576], [1 << 39, 1 << 39, 576], [-495552, -1, 576], [1 << 38] * 300])
def test_sizes_that_no_memory_holds_are_no_tensor(sizes: list[int]) -> None:
    shapes = parse_shapes(str([sizes, sizes]))
    assert moved_by_op("aten::copy_", shapes, ["BFloat16", "Float8_e4m3fn"]) is None


@pytest.mark.parametrize("sizes", [[1 << 39] * 40, [0, *[1 << 39] * 40], [1 << 25, 1 << 24]])
def test_shapes_of_more_elements_than_any_view_has_count_as_not_recorded(sizes: list[int]) -> None:
    assert parse_shapes(str([[8, 576], sizes])) is None
    assert parse_lists(str([[[8, 576], sizes]])) == {}


def test_an_expanded_tensor_may_have_more_elements_than_memory_holds() -> None:
    assert parse_shapes("[[64, 128, 32768, 32768]]") == [[64, 128, 32768, 32768]]
    assert parse_lists("[[[64, 128, 32768, 32768], [0, 5]], [3]]") == {0: [[64, 128, 32768, 32768], [0, 5]]}


@pytest.mark.parametrize("recorded", ['["\\uZZZZ"]', "[[1e]]", "[[" * 5000, '["\x01"]', "[[-]]", ""])
def test_damaged_shapes_and_types_count_as_not_recorded(recorded: str) -> None:
    assert parse_shapes(recorded) is None
    assert parse_types(recorded) is None


@pytest.mark.parametrize(
    ("kernel", "grid", "expected"),
    [
        (STRIDED_COPY, (3, 1, 1), (2 * 512 + 1, 3 * 512)),  # 128 threads of 4 elements each
        (TO_BF16, (1, 2, 1), (512 + 1, 2 * 512)),
        (NORM, (3, 1, 1), None),
        (STRIDED_COPY, None, None),
        (STRIDED_COPY, (0, 1, 1), None),
    ],
)
def test_a_launch_bounds_how_many_elements_it_writes(
    kernel: str, grid: tuple[int, int, int] | None, expected: tuple[int, int] | None
) -> None:
    assert elements_of_launch(kernel, grid, (128, 1, 1)) == expected
