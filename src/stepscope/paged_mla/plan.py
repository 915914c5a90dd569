"""The plan: which worker reads which tiles, made on the GPU so that a CUDA graph can hold it.

All tiles of all requests stand in one row; each worker gets an equal stretch of it. A stretch may end within a
request, whose parts are then merged. Everything about a part follows from the stretch's length, so the plan is three
small tensors and is the same from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from stepscope.paged_mla.arguments import LATENT, MAX_HEADS, Pages, check_pages, require_supported_device
from stepscope.paged_mla.launch_table import (
    INTERPRETED,
    INTERPRETED_MULTIPROCESSORS,
    Launch,
    chip_of,
    choose_launch,
    form_of,
)

_REQUEST_BLOCK = 256
_WORKER_BLOCK = 64
_INT32_MAX = 2**31 - 1


@triton.jit
def _length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR: tl.constexpr, PAGE_SIZE: tl.constexpr):  # noqa: ANN001, ANN202, N803
    # Tokens of request b that have a page entry; entries outside kv_indices are not counted.
    length = tl.load(seq_lens + b, mask=b < batch, other=0).to(tl.int64)
    if HAS_INDPTR:
        first = tl.load(indptr + b, mask=b < batch, other=0).to(tl.int64)
        last = tl.minimum(tl.load(indptr + b + 1, mask=b < batch, other=0).to(tl.int64), capacity)
        pages = tl.where(first >= 0, tl.maximum(last - first, 0), 0)
    else:
        pages = capacity
    return tl.minimum(tl.maximum(length, 0), pages * PAGE_SIZE)


@triton.jit
def plan_kernel(  # noqa: ANN201, PLR0913
    seq_lens,  # noqa: ANN001
    indptr,  # noqa: ANN001
    lengths,  # noqa: ANN001
    spans,  # noqa: ANN001
    starts,  # noqa: ANN001
    batch,  # noqa: ANN001
    capacity,  # noqa: ANN001
    workers,  # noqa: ANN001
    HAS_INDPTR: tl.constexpr,  # noqa: N803
    PAGE_SIZE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    REQUESTS: tl.constexpr,  # noqa: N803
    WORKERS: tl.constexpr,  # noqa: N803
):
    """Write ``lengths [B]``, ``spans [B, 2]`` and ``starts [workers + 1, 4]``; one program."""
    total = tl.zeros([], tl.int64)
    for b0 in range(0, batch, REQUESTS):
        b = b0 + tl.arange(0, REQUESTS)
        length = _length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE)
        tl.store(lengths + b, length.to(tl.int32), mask=b < batch)
        total += tl.sum((length + TILE - 1) // TILE)
    share = tl.maximum((total + workers - 1) // workers, 1)

    before = tl.zeros([], tl.int64)
    for b0 in range(0, batch, REQUESTS):
        b = b0 + tl.arange(0, REQUESTS)
        tiles = (_length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE) + TILE - 1) // TILE
        first = before + tl.cumsum(tiles, 0) - tiles
        some = tiles > 0
        tl.store(spans + 2 * b, tl.where(some, first // share, 0).to(tl.int32), mask=b < batch)
        last = tl.where(some, (first + tl.maximum(tiles, 1) - 1) // share, -1)
        tl.store(spans + 2 * b + 1, last.to(tl.int32), mask=b < batch)
        before += tl.sum(tiles)

    for w0 in range(0, workers + 1, WORKERS):
        w = w0 + tl.arange(0, WORKERS)
        at = tl.minimum(w.to(tl.int64) * share, total)
        request = tl.zeros([WORKERS], tl.int32)
        base = tl.zeros([WORKERS], tl.int64)
        before = tl.zeros([], tl.int64)
        for b0 in range(0, batch, REQUESTS):
            b = b0 + tl.arange(0, REQUESTS)
            tiles = (_length(seq_lens, indptr, b, batch, capacity, HAS_INDPTR, PAGE_SIZE) + TILE - 1) // TILE
            end = before + tl.cumsum(tiles, 0)
            passed = (end[None, :] <= at[:, None]) & (b < batch)[None, :]
            request += tl.sum(passed.to(tl.int32), 1)
            base += tl.sum(tl.where(passed, tiles[None, :], 0), 1)
            before += tl.sum(tiles)
        length = _length(seq_lens, indptr, request, batch, capacity, HAS_INDPTR, PAGE_SIZE)
        tl.store(starts + 4 * w, request, mask=w <= workers)
        tl.store(starts + 4 * w + 1, (at - base).to(tl.int32), mask=w <= workers)
        tl.store(starts + 4 * w + 2, length.to(tl.int32), mask=w <= workers)
        tl.store(starts + 4 * w + 3, 0, mask=w <= workers)


@dataclass(frozen=True)
class MlaPlan:
    """How one step's decode attention is dealt out; shared by all layers of the step.

    Attributes:
        launch: the kernel and its blocks.
        heads: query heads a rank that the buffers are made for.
        pages: the form of the pages that lengths were bounded by.
        lengths: int32 ``[B]``: tokens a request, at least 0 and at most what its pages hold.
        spans: int32 ``[B, 2]``: first and last worker of each request; (0, -1) without tokens.
        starts: int32 ``[workers + 1, 4]``: request and tile at which each worker starts, the tokens of that request
            (one load less before the first tile) and a zero; the last row is where the last worker ends.
        part_out: float32 ``[2 * workers, H, 512]``: results of parts of requests, until they are merged.
        part_lse: float32 ``[2 * workers, H]``: their base-2 log-sum-exp.
    """

    launch: Launch
    heads: int
    pages: Pages
    lengths: torch.Tensor
    spans: torch.Tensor
    starts: torch.Tensor
    part_out: torch.Tensor
    part_lse: torch.Tensor

    @property
    def workers(self) -> int:
        """Workers that share the tiles."""
        return self.starts.shape[0] - 1

    def update(
        self,
        seq_lens: torch.Tensor,
        *,
        block_table: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
    ) -> None:
        """Deal out again for new lengths, in place, on the current stream; a CUDA graph can capture it.

        Args:
            seq_lens: ``[B]`` for the plan's own B.
            block_table: pages, as in :func:`make_plan`; left out with the others, the plan's own are meant.
            kv_indptr: as in :func:`make_plan`.
            kv_indices: as in :func:`make_plan`.

        Raises:
            TypeError: an index dtype other than int32 or int64.
            ValueError: another batch size, or pages that are not accepted.
        """
        pages = self.pages
        if block_table is not None or kv_indptr is not None or kv_indices is not None:
            pages = check_pages(block_table, kv_indptr, kv_indices, pages.page_size, seq_lens)
        if seq_lens.shape[0] != self.lengths.shape[0]:
            raise ValueError(
                f"seq_lens has {seq_lens.shape[0]} requests; accepted: {self.lengths.shape[0]}, as the plan has"
            )
        numbers, indptr = pages.numbers, pages.indptr
        plan_kernel[(1,)](
            seq_lens,
            indptr if indptr is not None else seq_lens,
            self.lengths,
            self.spans,
            self.starts,
            seq_lens.shape[0],
            min(numbers.shape[0] if indptr is not None else numbers.shape[1], _INT32_MAX // pages.page_size),
            self.workers,
            HAS_INDPTR=indptr is not None,
            PAGE_SIZE=pages.page_size,
            TILE=self.launch.tokens,
            REQUESTS=min(_REQUEST_BLOCK, triton.next_power_of_2(max(seq_lens.shape[0], 16))),
            WORKERS=_WORKER_BLOCK,
            num_warps=8,
        )


def interpreted() -> bool:
    """Whether Triton was imported with its interpreter on."""
    return bool(triton.knobs.runtime.interpret)


def make_plan(
    seq_lens: torch.Tensor,
    *,
    heads: int,
    page_size: int,
    block_table: torch.Tensor | None = None,
    kv_indptr: torch.Tensor | None = None,
    kv_indices: torch.Tensor | None = None,
    kv_dtype: torch.dtype = torch.float8_e4m3fn,
    launch: Launch | None = None,
) -> MlaPlan:
    """Deal out one decode step's tiles, on the GPU and without waiting for it.

    Args:
        seq_lens: tokens a request ``[B]``, int32 or int64; negative counts as 0, more than the pages hold as that.
        heads: query heads a rank, 1 to 128.
        page_size: tokens a page.
        block_table: page numbers ``[B, max_pages]``, int32 or int64; or
        kv_indptr: ``[B + 1]``, where each request's pages start in
        kv_indices: ``[n]``, page numbers.
        kv_dtype: of the pool: float8_e4m3fn or bfloat16.
        launch: a launch other than the table's for this chip, pool and number of heads.

    Returns:
        A plan for :func:`mla_decode`. Call its ``update`` in a captured graph to follow changing lengths.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape, device or number that is not accepted.
    """
    pages = check_pages(block_table, kv_indptr, kv_indices, page_size, seq_lens)
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"heads is {heads}; accepted: 1 to {MAX_HEADS}")
    device = seq_lens.device
    require_supported_device(device, interpreted=interpreted())
    if launch is None:
        launch = default_launch(device, kv_dtype, heads, seq_lens.shape[0])
    multiprocessors = (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else INTERPRETED_MULTIPROCESSORS
    )
    workers = launch.workers(heads, multiprocessors)
    batch = seq_lens.shape[0]
    plan = MlaPlan(
        launch=launch,
        heads=heads,
        pages=pages,
        lengths=torch.empty(batch, dtype=torch.int32, device=device),
        spans=torch.empty(batch, 2, dtype=torch.int32, device=device),
        starts=torch.empty(workers + 1, 4, dtype=torch.int32, device=device),
        part_out=torch.empty(2 * workers, heads, LATENT, dtype=torch.float32, device=device),
        part_lse=torch.empty(2 * workers, heads, dtype=torch.float32, device=device),
    )
    plan.update(seq_lens)
    return plan


def default_launch(
    device: torch.device, kv_dtype: torch.dtype, heads: int, batch: int, *, portable: bool = False
) -> Launch:
    """The table's launch for a device; the interpreter's own on the CPU."""
    if device.type != "cuda":
        return INTERPRETED
    chip = chip_of(torch.cuda.get_device_capability(device))
    return choose_launch(chip, form_of(kv_dtype, chip), heads, batch, portable=portable)
