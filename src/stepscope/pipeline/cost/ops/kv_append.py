"""New tokens written to the KV pool: their keys and values read, and written in the pool's type.

Signatures: vLLM's csrc/torch_bindings.cpp (cache_ops), SGLang's jit_kernel/kvcache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call


def _append(call: Call) -> Work | None:
    """`reshape_and_cache(k, v, k pool, v pool, slots, …)`."""
    return _written(call, 2, 2)


def _append_latent(call: Call) -> Work | None:
    """`concat_and_cache_mla(latent, rope, pool, slots, …)`."""
    return _written(call, 2, 1)


def _written(call: Call, new: int, pools: int) -> Work | None:
    """Cost of as many pools after `new` tensors of new rows; the pools' types alone are of interest."""
    if not all(map(call.is_tensor, range(new + pools + 1))):
        return None
    rows = range(new)
    written = sum(map(call.elements, rows)) * call.item_bytes(new)
    return Work(sum(map(call.bytes, rows)) + written + call.bytes(new + pools))


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    "_C_cache_ops::reshape_and_cache": _append,
    "_C_cache_ops::reshape_and_cache_flash": _append,
    "sglang::store_cache": _append,
    "_C_cache_ops::concat_and_cache_mla": _append_latent,
}
