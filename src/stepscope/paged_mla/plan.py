"""The plan: which worker reads which tiles, made on the GPU so that a CUDA graph can hold it.

All tiles of all requests stand in one row; each worker gets an equal stretch of it. A stretch may end within a
request, whose parts are then merged. Everything about a part follows from the stretch's length, so the plan is three
small tensors and is the same from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from stepscope.paged_mla.arguments import LATENT, MAX_HEADS, Pages, check_pages, require_supported_device
from stepscope.paged_mla.kernels.plan import plan_kernel
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
            ValueError: another batch size, more or another form of pages than the plan was made for, or pages that
                are not accepted.
        """
        pages = self.pages
        if block_table is not None or kv_indptr is not None or kv_indices is not None:
            pages = check_pages(block_table, kv_indptr, kv_indices, pages.page_size, seq_lens)
        if pages.form != self.pages.form or pages.capacity > self.pages.capacity:
            raise ValueError(
                f"{pages.form} has room for {pages.capacity} pages; accepted: {self.pages.form} with at most "
                f"{self.pages.capacity}, as the plan was made for"
            )
        if seq_lens.shape[0] != self.lengths.shape[0]:
            raise ValueError(
                f"seq_lens has {seq_lens.shape[0]} requests; accepted: {self.lengths.shape[0]}, as the plan has"
            )
        indptr = pages.indptr
        plan_kernel[(1,)](
            seq_lens,
            indptr if indptr is not None else seq_lens,
            self.lengths,
            self.spans,
            self.starts,
            seq_lens.shape[0],
            min(pages.capacity, _INT32_MAX // pages.page_size),
            self.workers,
            HAS_INDPTR=indptr is not None,
            PAGE_SIZE=pages.page_size,
            TILE=self.launch.tokens,
            REQUESTS=min(_REQUEST_BLOCK, triton.next_power_of_2(max(seq_lens.shape[0], 16))),
            WORKERS=_WORKER_BLOCK,
            num_warps=8,
        )


def interpreted() -> bool:
    """Whether Triton was imported with its interpreter on (its kernels are then no JIT functions)."""
    return not isinstance(plan_kernel, triton.JITFunction)


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
