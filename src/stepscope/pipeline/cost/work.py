"""What a piece of work needs of the hardware: bytes to move and operations to compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one call or component."""

    bytes: float
    """Bytes read from and written to memory, each operand once; expected values need not be whole."""
    flops: float = 0.0
    """Floating-point operations; a multiplication and an addition are two."""
    multiply_dtype: str = "BFloat16"
    """Type of the matrix multiplication, which tells the rate that bounds the operations."""
    avoidable_bytes: float = 0.0
    """Of the bytes, those of pure copies, casts and fills: a consumer that reads the source would not need them."""
    sent_bytes: float | None = None
    """Bytes that a rank sends to others over links, in one collective; None: it is none."""

    def __add__(self, other: Work) -> Work:
        """Return both works done one after another; they must multiply in the same type if both do."""
        sent = [work.sent_bytes for work in (self, other) if work.sent_bytes is not None]
        return Work(
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.multiply_dtype if self.flops else other.multiply_dtype,
            self.avoidable_bytes + other.avoidable_bytes,
            sum(sent) if sent else None,
        )

    def __mul__(self, count: float) -> Work:
        """Return the work done so many times."""
        sent = None if self.sent_bytes is None else self.sent_bytes * count
        return Work(self.bytes * count, self.flops * count, self.multiply_dtype, self.avoidable_bytes * count, sent)
