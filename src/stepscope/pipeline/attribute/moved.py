"""What a copy or cast moves: from the shapes of its op, or else from the size of its launch.

PyTorch's elementwise kernels give each thread a fixed number of elements, so the grid tells the element count up to
the last block, which may be partly filled: (blocks − 1) × block elements < elements ≤ blocks × block elements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated

import msgspec

from stepscope.dtypes import torch_name
from stepscope.kernel_name import LOOKED_AT

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_ELEMENTS = 1 << 39
"""No GPU's memory holds as many bytes: a larger size is damage, and its bytes may not fit in 64 bits."""
_MOST_VIEWED = 1 << 48
"""Elements of a tensor: one that is expanded may have more than memory holds, but with far more its shape is damage."""
_Blocks = tuple[int, int, int] | None
_Size = Annotated[int, msgspec.Meta(ge=0, le=_MOST_ELEMENTS)]
_COPY_OPS = {"aten::copy_"}
_CONVERSIONS = {"aten::to", "aten::_to_copy"}
_ELEMENTS_A_THREAD = re.compile(r"unrolled_elementwise_kernel<.*std::array<char\*, \d+ul>, (\d{1,4}),")
_STRIDED_ELEMENTS_A_THREAD = re.compile(r"\belementwise_kernel(?:_manual_unroll)?<\d{1,4}, (\d{1,4}),")
_DIRECT_COPY_TYPE = re.compile(r"direct_copy_kernel_cuda.*?\{lambda\(([\w:]+(?: \w+)?)\)#\d+\}")


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that is copied or cast, whole, by one kernel."""

    elements_low: int
    elements_high: int
    """Bounds of the number of elements; equal where shapes were recorded."""
    shape: tuple[int, ...] | None
    """None where it was read off the grid."""
    source_dtype: str | None
    target_dtype: str | None

    @property
    def is_cast(self) -> bool | None:
        """Whether the types differ; None where one of them is not known."""
        if self.source_dtype is None or self.target_dtype is None:
            return None
        return self.source_dtype != self.target_dtype


def parse_shapes(recorded: str | None) -> list[list[int]] | None:
    """Return the shapes of an op's inputs: an empty list for each that is no tensor; None where not recorded.

    A list of tensors counts as no tensor.
    """
    inputs = _inputs(recorded)
    return None if inputs is None else [_shape(sizes) for sizes in inputs]


def parse_lists(recorded: str | None) -> dict[int, list[list[int]]]:
    """Return the shapes of the tensors in those of an op's inputs that are lists of tensors, by the input's index."""
    nested = {index: _tensors(sizes) for index, sizes in enumerate(_inputs(recorded) or ())}
    return {index: shapes for index, shapes in nested.items() if shapes}


def _inputs(recorded: str | None) -> list[list[int | list[int]]] | None:
    """Return the sizes of an op's inputs, or of the tensors in them; None where not recorded, or of no tensors."""
    if recorded is None:
        return None
    try:
        inputs: list[list[int | list[int]]] = msgspec.json.decode(recorded, type=list[list[_Size | list[_Size]]])
    except msgspec.DecodeError:
        return None
    shapes = (shape for sizes in inputs for shape in (_shape(sizes), *_tensors(sizes)))
    return inputs if all(prod(filter(None, shape)) <= _MOST_VIEWED for shape in shapes) else None


def _shape(sizes: Sequence[int | list[int]]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]


def _tensors(sizes: Sequence[int | list[int]]) -> list[list[int]]:
    return [shape for shape in sizes if isinstance(shape, list)]


def parse_types(recorded: str | None) -> list[str | None] | None:
    """Return torch's names of the types of an op's inputs: None for each that is no tensor."""
    if recorded is None:
        return None
    try:
        inputs = msgspec.json.decode(recorded, type=list[str | list[str]])
    except msgspec.DecodeError:
        return None
    return [torch_name(name) if isinstance(name, str) else None for name in inputs]


def moved_by_op(op: str, shapes: Sequence[Sequence[int]] | None, types: Sequence[str | None] | None) -> Moved | None:
    """Return what `aten::copy_` moves: its input 0 is the destination, 1 the source."""
    if op not in _COPY_OPS or not shapes or not types or len(shapes) < 2 or len(types) < 2:
        return None
    shape = tuple(shapes[0])
    elements = prod(shape)
    if elements > _MOST_ELEMENTS:
        return None
    return Moved(elements, elements, tuple(shapes[1]) if prod(shapes[1]) == elements else shape, types[1], types[0])


def moved_by_conversion(
    op: str, shapes: Sequence[Sequence[int]] | None, types: Sequence[str | None] | None, kernel: str
) -> Moved | None:
    """Return what `aten::to` moves where no `aten::copy_` stands in it: its input 0 is the source."""
    target = _DIRECT_COPY_TYPE.search(kernel[:LOOKED_AT])
    if op not in _CONVERSIONS or not shapes or not types or target is None:
        return None
    elements = prod(shapes[0])
    if elements > _MOST_ELEMENTS or types[0] is None:
        return None
    return Moved(elements, elements, tuple(shapes[0]), types[0], torch_name(target[1]))


def moved_by_grid(kernel: str, grid: _Blocks, block: _Blocks) -> Moved | None:
    """Return what a casting copy kernel moves, from its name and launch; its name tells the target type only."""
    elements = elements_of_launch(kernel, grid, block)
    target = _DIRECT_COPY_TYPE.search(kernel[:LOOKED_AT])
    if elements is None or not target or not _ELEMENTS_A_THREAD.search(kernel[:LOOKED_AT]):
        return None
    return Moved(*elements, None, None, torch_name(target[1]))


def elements_of_launch(kernel: str, grid: _Blocks, block: _Blocks) -> tuple[int, int] | None:
    """Return the bounds of how many elements a kernel of PyTorch's element by element writes; None for any other."""
    head = kernel[:LOOKED_AT]
    threaded = _ELEMENTS_A_THREAD.search(head) or _STRIDED_ELEMENTS_A_THREAD.search(head)
    if not threaded or grid is None or block is None:
        return None
    block_elements = prod(block) * int(threaded[1])
    blocks = prod(grid)
    if not 0 < blocks * block_elements <= _MOST_ELEMENTS:
        return None
    return (blocks - 1) * block_elements + 1, blocks * block_elements
