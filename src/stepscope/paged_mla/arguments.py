"""What the public functions accept: each refusal names the argument, what was given and what is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

LATENT = 512
ROPE = 64
ROW = LATENT + ROPE
MAX_HEADS = 128
POOL_DTYPES = (torch.float8_e4m3fn, torch.bfloat16)
INDEX_DTYPES = (torch.int32, torch.int64)
OUT_DTYPES = (torch.bfloat16, torch.float32)

KvCache: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Pool:
    """The rows of a paged KV pool, whatever form it was given in.

    Attributes:
        latent: ``[slots, 512]`` view; strides ``(any, 1)``.
        rope: ``[slots, 64]`` view of the same dtype; strides ``(any, 1)``.
    """

    latent: torch.Tensor
    rope: torch.Tensor

    @property
    def slots(self) -> int:
        """Rows in the pool."""
        return self.latent.shape[0]


@dataclass(frozen=True)
class Pages:
    """Which pages each request has: a table, or indices with an indptr.

    Attributes:
        numbers: ``[B, max_pages]`` with inner stride 1, or ``[n]`` contiguous; int32 or int64.
        indptr: ``[B + 1]`` for the second form, None for the first.
        page_size: tokens a page.
    """

    numbers: torch.Tensor
    indptr: torch.Tensor | None
    page_size: int

    @property
    def capacity(self) -> int:
        """Page entries: of each request in a table, of all requests with an indptr."""
        return self.numbers.shape[1] if self.indptr is None else self.numbers.shape[0]

    @property
    def form(self) -> str:
        """The argument that page numbers came in."""
        return "block_table" if self.indptr is None else "kv_indices"


def shape_of(tensor: torch.Tensor) -> str:
    """A tensor's shape as a user writes it."""
    return "[" + ", ".join(str(n) for n in tensor.shape) + "]"


def require_tensor(name: str, value: object) -> torch.Tensor:
    """Return ``value`` if it is a tensor.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; a torch.Tensor is accepted")
    return value


def require_dtype(name: str, tensor: torch.Tensor, accepted: tuple[torch.dtype, ...]) -> None:
    """Raise TypeError unless the tensor's dtype is among those accepted."""
    if tensor.dtype not in accepted:
        raise TypeError(f"{name} has dtype {tensor.dtype}; accepted: {', '.join(str(d) for d in accepted)}")


def require_device(name: str, tensor: torch.Tensor, device: torch.device, of: str) -> None:
    """Raise ValueError unless the tensor lies on ``device``, where the argument ``of`` lies."""
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; accepted: {device}, where {of} is")


def _rows(name: str, tensor: torch.Tensor, width: int, page_size: int) -> torch.Tensor:
    """View ``[slots, width]``, ``[slots, 1, width]`` or ``[pages, page_size(, 1), width]`` as rows."""
    if tensor.dim() not in (2, 3, 4) or tensor.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {shape_of(tensor)}; accepted: [slots, 1, {width}], [slots, {width}] or "
            f"[pages, page_size, {width}]"
        )
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last axis; accepted: 1")
    middle = list(tensor.shape[1:-1])
    if middle not in ([], [1], [page_size], [page_size, 1], [1, page_size]):
        raise ValueError(
            f"{name} has shape {shape_of(tensor)}, which does not fit page_size {page_size}; accepted: "
            f"[slots, 1, {width}], [slots, {width}] or [pages, {page_size}, {width}]"
        )
    try:
        rows = tensor.view(-1, width)
    except RuntimeError:
        raise ValueError(
            f"{name} has strides {tuple(tensor.stride())}; accepted: rows at one even distance from each other"
        ) from None
    if rows.shape[0] == 0:
        raise ValueError(f"{name} has no slots; a pool of at least one is accepted")
    return rows


def check_pool(kv_cache: KvCache, page_size: int, device: torch.device, of: str = "q_nope") -> Pool:
    """Bring a pool into rows.

    Args:
        kv_cache: one tensor of 576 columns, or the pair (512 columns, 64 columns).
        page_size: tokens a page.
        device: where it must lie.
        of: the argument that ``device`` was taken from, for the message.

    Raises:
        TypeError: a dtype other than float8_e4m3fn or bfloat16, or no tensor.
        ValueError: a shape, stride or device that is not accepted.
    """
    pair = isinstance(kv_cache, (tuple, list))
    if pair and len(kv_cache) != 2:
        raise ValueError(f"kv_cache is a sequence of {len(kv_cache)}; accepted: one tensor, or a pair (latent, rope)")
    parts = kv_cache if pair else (kv_cache,)
    names = ("kv_cache[0]", "kv_cache[1]") if pair else ("kv_cache",)
    widths = (LATENT, ROPE) if pair else (ROW,)
    rows = []
    for name, part, width in zip(names, parts, widths, strict=True):
        tensor = require_tensor(name, part)
        if tensor.dtype == torch.uint8:
            raise TypeError(f"{name} has dtype torch.uint8; accepted: its bytes as .view(torch.float8_e4m3fn)")
        require_dtype(name, tensor, POOL_DTYPES)
        require_device(name, tensor, device, of)
        rows.append(_rows(name, tensor, width, page_size))
    if not pair:
        return Pool(rows[0][:, :LATENT], rows[0][:, LATENT:])
    latent, rope = rows
    if rope.dtype != latent.dtype:
        raise TypeError(f"kv_cache[1] has dtype {rope.dtype}; accepted: {latent.dtype}, as kv_cache[0] has")
    if rope.shape[0] != latent.shape[0]:
        raise ValueError(f"kv_cache[1] has {rope.shape[0]} slots; accepted: {latent.shape[0]}, as kv_cache[0] has")
    return Pool(latent, rope)


def check_pages(
    block_table: torch.Tensor | None,
    kv_indptr: torch.Tensor | None,
    kv_indices: torch.Tensor | None,
    page_size: int,
    seq_lens: torch.Tensor,
) -> Pages:
    """Take the pages from either form.

    Raises:
        TypeError: an index dtype other than int32 or int64.
        ValueError: both forms, neither, half of one, or a shape or device that is not accepted.
    """
    if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size < 1:
        raise ValueError(f"page_size is {page_size!r}; accepted: an int of at least 1")
    tensor = require_tensor("seq_lens", seq_lens)
    require_dtype("seq_lens", tensor, INDEX_DTYPES)
    if tensor.dim() != 1:
        raise ValueError(f"seq_lens has shape {shape_of(tensor)}; accepted: [B]")
    batch = tensor.shape[0]
    given = [
        n
        for n, v in (("block_table", block_table), ("kv_indptr", kv_indptr), ("kv_indices", kv_indices))
        if v is not None
    ]
    if given not in (["block_table"], ["kv_indptr", "kv_indices"]):
        raise ValueError(
            f"pages were given as {', '.join(given) or 'nothing'}; accepted: block_table alone, or kv_indptr and "
            "kv_indices together"
        )
    if block_table is not None:
        numbers = require_tensor("block_table", block_table)
        if numbers.dim() != 2 or numbers.shape[0] != batch:
            raise ValueError(f"block_table has shape {shape_of(numbers)}; accepted: [{batch}, max_pages]")
        if numbers.shape[1] > 0 and numbers.stride(1) != 1:
            raise ValueError(f"block_table has stride {numbers.stride(1)} in its last axis; accepted: 1")
        name, indptr = "block_table", None
    else:
        numbers = require_tensor("kv_indices", kv_indices)
        indptr = require_tensor("kv_indptr", kv_indptr)
        require_dtype("kv_indptr", indptr, INDEX_DTYPES)
        require_device("kv_indptr", indptr, tensor.device, "seq_lens")
        if indptr.shape != (batch + 1,) or not indptr.is_contiguous():
            raise ValueError(f"kv_indptr has shape {shape_of(indptr)}; accepted: [{batch + 1}], contiguous")
        if numbers.dim() != 1 or not numbers.is_contiguous():
            raise ValueError(f"kv_indices has shape {shape_of(numbers)}; accepted: [n], contiguous")
        name = "kv_indices"
    require_dtype(name, numbers, INDEX_DTYPES)
    require_device(name, numbers, tensor.device, "seq_lens")
    if not tensor.is_contiguous():
        raise ValueError(f"seq_lens has stride {tensor.stride(0)}; accepted: 1")
    return Pages(numbers, indptr, page_size)


def check_queries(q_nope: torch.Tensor, q_pe: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless the queries are ``[B, H, 512]`` and ``[B, H, 64]`` in bfloat16."""
    nope, pe = require_tensor("q_nope", q_nope), require_tensor("q_pe", q_pe)
    for name, tensor, width in (("q_nope", nope, LATENT), ("q_pe", pe, ROPE)):
        require_dtype(name, tensor, (torch.bfloat16,))
        require_device(name, tensor, nope.device, "q_nope")
        if tensor.dim() != 3 or tensor.shape[2] != width:
            raise ValueError(f"{name} has shape {shape_of(tensor)}; accepted: [B, H, {width}]")
        if tensor.stride(2) != 1:
            raise ValueError(f"{name} has stride {tensor.stride(2)} in its last axis; accepted: 1")
    batch, heads = nope.shape[:2]
    if pe.shape[:2] != nope.shape[:2]:
        raise ValueError(f"q_pe has shape {shape_of(pe)}; accepted: [{batch}, {heads}, {ROPE}], as q_nope has")
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"q_nope has {heads} heads; accepted: 1 to {MAX_HEADS}")
    require_device("seq_lens", seq_lens, nope.device, "q_nope")
    if seq_lens.shape[0] != batch:
        raise ValueError(f"seq_lens has {seq_lens.shape[0]} requests; accepted: {batch}, as q_nope has")


def check_output(name: str, tensor: torch.Tensor, shape: tuple[int, ...], q_nope: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless ``out`` or ``lse`` can be written by the kernels."""
    value = require_tensor(name, tensor)
    require_dtype(name, value, OUT_DTYPES if name == "out" else (torch.float32,))
    require_device(name, value, q_nope.device, "q_nope")
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {shape_of(value)}; accepted: [{', '.join(str(n) for n in shape)}]")
    if value.stride(-1) != 1:
        raise ValueError(f"{name} has stride {value.stride(-1)} in its last axis; accepted: 1")


def require_supported_device(device: torch.device, *, interpreted: bool) -> None:
    """Raise ValueError unless kernels can run there: CUDA, or the CPU under Triton's interpreter."""
    if torch.version.hip is not None:
        raise ValueError(f"q_nope is on a ROCm device ({device}); accepted: NVIDIA GPUs (ROCm is not supported yet)")
    if device.type == "cpu" and interpreted:
        return
    if device.type != "cuda":
        raise ValueError(
            f"q_nope is on {device}; accepted: a CUDA device (or the CPU where TRITON_INTERPRET=1 was set first)"
        )
