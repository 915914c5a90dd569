"""Where tokens go among experts: the choice, the sorting by expert, and the sums of what comes back.

Signatures: sgl-kernel's common_extension.cc, vLLM's csrc/moe/torch_bindings.cpp, SGLang's grouped_topk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

_CHOICES = (
    *(f"{library}::topk_{kind}" for library in ("sgl_kernel", "_moe_C") for kind in ("softmax", "sigmoid")),
    "sgl_kernel::moe_fused_gate",
    "sgl_kernel::kimi_k2_moe_fused_gate",
    "sglang::_jit_grouped_topk_op",
    "_moe_C::grouped_topk",
)
_SUMS = ("sgl_kernel::moe_sum", "sgl_kernel::moe_sum_reduce", "_moe_C::moe_sum")


def _each_once(call: Call) -> Work | None:
    """Every tensor once, read or written; results that are returned, not given, are small and left out."""
    return Work(call.all_bytes, max(map(call.elements, call.tensors))) if call.tensors else None


def _align(call: Call) -> Work | None:
    """`moe_align_block_size(ids, …)`: the ids are read and written sorted; buffers have room for the worst case."""
    return Work(2 * call.bytes(0)) if call.is_tensor(0) else None


def _permute(call: Call) -> Work | None:
    """`moe_permute(x [t, h], ids [t, k], …)`: each row read once and written for each of its experts."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1)):
        return None
    return Work(call.bytes(0) + call.bytes(1) + call.elements(1) * call.shapes[0][1] * call.item_bytes(0))


def _unpermute(call: Call) -> Work | None:
    """`moe_unpermute(rows [n, h], weights [t, k], …)`: k weighted rows a token are read, and their sum written."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1, 2)):
        return None
    (tokens, per_token), hidden = call.shapes[1], call.shapes[0][1]
    rows = tokens * (per_token + 1) * hidden * call.item_bytes(0)
    return Work(rows + call.bytes(1), 2 * tokens * per_token * hidden)


def _shuffle(call: Call) -> Work | None:
    """`shuffle_rows(rows, map, out)`: a row read and written for each entry of the map."""
    if not (call.is_tensor(0, 2) and call.is_tensor(1)):
        return None
    return Work(call.bytes(1) + 2 * call.elements(1) * call.shapes[0][1] * call.item_bytes(0))


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    **dict.fromkeys((*_CHOICES, *_SUMS), _each_once),
    **dict.fromkeys((f"{library}::moe_align_block_size" for library in ("sgl_kernel", "_moe_C")), _align),
    "_moe_C::moe_permute": _permute,
    "_moe_C::moe_unpermute": _unpermute,
    "_moe_C::shuffle_rows": _shuffle,
    "sgl_kernel::shuffle_rows": _shuffle,
}
