"""Which kernel runs with which blocks, warps and stages on which chip, as data.

A row applies to a chip (its compute capability), a pool dtype and up to a number of heads a rank; the first that
fits is taken. Shared memory a block is checked ahead of time against each chip's limit by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kernel = Literal["triton", "mma", "wgmma"]
PoolForm = Literal["e4m3", "bytes", "bf16"]

# Bytes of shared memory that one block may have (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability").
SHARED_LIMIT = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}


@dataclass(frozen=True)
class Launch:
    """One launch configuration.

    Attributes:
        kernel: ``triton``, or ``mma`` or ``wgmma``: CUDA C++ for sm_90a, compiled at first use.
        heads: query heads a block works on at once.
        tokens: tokens of a tile: one loop iteration, and the unit in which a plan deals out work.
        warps: warps a block.
        stages: tiles in flight in shared memory; quarters of tiles for ``wgmma``.
        blocks_per_sm: blocks that fit one SM, which sets how many workers share the work.
        max_blocks: blocks at most. 128 of 132 cut equal requests, a power of two of them, into equal pieces: worth it
            where a piece costs the time of several tiles.
    """

    kernel: Kernel
    heads: int
    tokens: int
    warps: int
    stages: int
    blocks_per_sm: int
    max_blocks: int = 1 << 30

    def workers(self, heads: int, multiprocessors: int) -> int:
        """Workers a plan deals tiles to, so that all head blocks together fill the chip once at most."""
        return max(1, min(multiprocessors * self.blocks_per_sm, self.max_blocks) // self.head_blocks(heads))

    def head_blocks(self, heads: int) -> int:
        """Blocks that share a worker's tiles, each with its own heads."""
        return -(-heads // self.heads)


@dataclass(frozen=True)
class Row:
    """One line of the table: where ``launch`` applies."""

    chip: int
    form: PoolForm
    max_heads: int
    launch: Launch
    max_batch: int = 1 << 30


TABLE: tuple[Row, ...] = (
    Row(90, "e4m3", 8, Launch("mma", heads=8, tokens=64, warps=8, stages=6, blocks_per_sm=1), max_batch=4),
    Row(90, "e4m3", 8, Launch("mma", heads=8, tokens=64, warps=8, stages=3, blocks_per_sm=2)),
    Row(90, "e4m3", 16, Launch("mma", heads=16, tokens=64, warps=8, stages=5, blocks_per_sm=1)),
    Row(90, "e4m3", 32, Launch("wgmma", heads=32, tokens=64, warps=12, stages=20, blocks_per_sm=1)),
    Row(90, "e4m3", 128, Launch("wgmma", heads=64, tokens=64, warps=12, stages=15, blocks_per_sm=1, max_blocks=128)),
    Row(90, "bf16", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=2)),
    Row(100, "e4m3", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=3, blocks_per_sm=2)),
    Row(100, "bf16", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=2)),
    Row(89, "e4m3", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=1)),
    Row(89, "bf16", 128, Launch("triton", heads=16, tokens=16, warps=4, stages=2, blocks_per_sm=1)),
    Row(120, "e4m3", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=1)),
    Row(120, "bf16", 128, Launch("triton", heads=16, tokens=16, warps=4, stages=2, blocks_per_sm=1)),
    Row(80, "bytes", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=1)),
    Row(80, "bf16", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=2, blocks_per_sm=1)),
)

# The Triton kernel where the CUDA one cannot run (unaligned rows, no compiler), and to test the CUDA one against.
PORTABLE: tuple[Row, ...] = (
    Row(90, "e4m3", 128, Launch("triton", heads=16, tokens=32, warps=4, stages=3, blocks_per_sm=2)),
)

# Under Triton's interpreter: small, and with as many workers as a small case can be split over.
INTERPRETED = Launch("triton", heads=16, tokens=32, warps=4, stages=1, blocks_per_sm=1)
INTERPRETED_MULTIPROCESSORS = 5


def chip_of(capability: tuple[int, int]) -> int:
    """The row of the table that a compute capability uses: the newest chip that is not newer.

    Raises:
        ValueError: older than sm_80.
    """
    number = capability[0] * 10 + capability[1]
    known = [chip for chip in sorted(SHARED_LIMIT) if chip <= number]
    if not known:
        raise ValueError(f"q_nope is on an sm_{number} device; accepted: sm_80 and later")
    return known[-1]


def form_of(dtype: torch.dtype, chip: int) -> PoolForm:
    """How a kernel reads the pool: e4m3 as bytes where the chip has no conversion (before sm_89)."""
    if dtype == torch.bfloat16:
        return "bf16"
    return "e4m3" if chip >= 89 else "bytes"


def choose_launch(chip: int, form: PoolForm, heads: int, batch: int, *, portable: bool = False) -> Launch:
    """The launch for a chip, a pool and a shape; ``portable`` leaves out CUDA C++ kernels.

    Raises:
        ValueError: no row fits.
    """
    rows = (*PORTABLE, *TABLE) if portable else TABLE
    for row in rows:
        if row.chip == chip and row.form == form and heads <= row.max_heads and batch <= row.max_batch:
            return row.launch
    raise ValueError(f"q_nope has {heads} heads on sm_{chip} with a {form} pool; no launch is known for that")
