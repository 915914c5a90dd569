"""What is timed: shapes, their limits and the goals set for them before the kernel was written."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BYTES = 576
FLOP_PER_TOKEN_HEAD = 2 * (576 + 512)
COPY_RATE = 4.3e12  # bytes/s: a large device-to-device copy on one H200, counting bytes read and written
MATRIX_RATE = 790e12  # FLOP/s: an 8192^3 bf16 product of random numbers on one H200


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        heads: query heads a rank.
        batch: requests.
        tokens: tokens of each request.
        goal_us: what was aimed at.
    """

    heads: int
    batch: int
    tokens: int
    goal_us: float

    @property
    def all_tokens(self) -> int:
        """Tokens of all requests."""
        return self.batch * self.tokens

    @property
    def limit_us(self) -> float:
        """The least time: FP8 bytes at the copy rate or FLOP at the matrix rate, whichever is longer."""
        memory = self.all_tokens * ROW_BYTES / COPY_RATE
        compute = self.all_tokens * self.heads * FLOP_PER_TOKEN_HEAD / MATRIX_RATE
        return 1e6 * max(memory, compute)

    @property
    def name(self) -> str:
        """``heads, batch, tokens`` for tables."""
        return f"{self.heads}, {self.batch}, {self.tokens:,}"


CASES = (
    Case(8, 64, 7500, 80),
    Case(16, 64, 7500, 84),
    Case(8, 64, 4096, 48),
    Case(8, 16, 4096, 19),
    Case(8, 1, 131_072, 35),
    Case(8, 1, 32_768, 18),
    Case(8, 1, 1024, 9),
    Case(64, 16, 4096, 25),
    Case(64, 64, 7500, 120),
    Case(128, 64, 7500, 230),
)
PAGE_SIZES = (1, 64)
