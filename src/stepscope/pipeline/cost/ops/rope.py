"""Rotary position embeddings: queries and keys read and written, and a row of cosines and sines for each token.

Signatures: vLLM's csrc/torch_bindings.cpp, sgl-kernel's common_extension.cc, SGLang's jit_kernel/rope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.pipeline.cost.ops.call import Call

_FLOPS = 3
"""Operations a value: two multiplications and an addition."""


def _with_positions(call: Call) -> Work | None:
    """`rotary_embedding(positions, q, k or none, head_size, cos_sin [length, width], …)`, in place."""
    return _in_place(call, (1, 2), table=4, positions=0)


def _inplace(call: Call) -> Work | None:
    """`apply_rope_inplace(q, k, cos_sin, positions, …)`."""
    return _in_place(call, (0, 1), table=2, positions=3)


def _into_new(call: Call) -> Work | None:
    """`apply_rope_pos_ids_cos_sin_cache(q, k, q out, k out, cos_sin, positions, …)`."""
    if not all(map(call.is_tensor, range(6))) or not call.shapes[4]:
        return None
    rows = call.elements(5) * call.shapes[4][-1] * call.item_bytes(4)
    return Work(sum(map(call.bytes, range(4))) + rows + call.bytes(5), _FLOPS * (call.elements(0) + call.elements(1)))


def _in_place(call: Call, rotated: Sequence[int], *, table: int, positions: int) -> Work | None:
    """Cost of rotation in place; where heads have an axis of their own, only the table's width of each is touched.

    Where heads are joined on one axis, how wide they are is not recorded: all of each is counted.
    """
    if not (call.is_tensor(rotated[0]) and call.is_tensor(table, 2) and call.is_tensor(positions)):
        return None
    width = call.shapes[table][1]
    size, values = call.bytes(positions) + call.elements(positions) * width * call.item_bytes(table), 0
    for index in filter(call.is_tensor, rotated):
        shape = call.shapes[index]
        touched = call.elements(index)
        if len(shape) > 2 and shape[-1] > width:
            touched = touched // shape[-1] * width
        size += 2 * touched * call.item_bytes(index)
        values += touched
    return Work(size, _FLOPS * values)


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    "_C::rotary_embedding": _with_positions,
    "sgl_kernel::rotary_embedding": _with_positions,
    "sglang::apply_rope_inplace": _inplace,
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache": _into_new,
}
