"""A call of an op as it was recorded: the shapes and types of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from stepscope.dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op. An input without a dtype is no tensor: a scalar, a list, or none."""

    op: str
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str | None]
    """As torch writes them; as many as shapes."""
    lists: Mapping[int, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Shapes of the tensors in the inputs that are lists of tensors, by index; their types are not recorded."""
    kernel: str = ""
    """Name of the longest kernel that it launched."""
    grid: tuple[int, int, int] | None = None
    """Blocks of that kernel."""

    @property
    def tensors(self) -> list[int]:
        """Indices of the inputs that are tensors."""
        return [index for index, dtype in enumerate(self.dtypes) if dtype is not None]

    def is_tensor(self, index: int, dimensions: int | None = None) -> bool:
        """Tell whether an input is a tensor, of so many dimensions if told."""
        if index >= len(self.dtypes) or self.dtypes[index] is None:
            return False
        return dimensions is None or len(self.shapes[index]) == dimensions

    def elements(self, index: int) -> int:
        """Return the elements of an input."""
        return prod(self.shapes[index])

    def item_bytes(self, index: int) -> int:
        """Return the bytes of an element of an input that is a tensor."""
        return item_bytes(self.dtypes[index] or "")

    def bytes(self, index: int) -> int:
        """Return the bytes of an input that is a tensor."""
        return self.elements(index) * self.item_bytes(index)

    @property
    def all_bytes(self) -> int:
        """Bytes of all inputs that are tensors."""
        return sum(map(self.bytes, self.tensors))
