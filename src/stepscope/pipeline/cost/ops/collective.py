"""Collectives: what a rank sends to the others of its group, beside what it reads and writes in its own memory.

Kinds are told by the op, or for `record_param_comms`, which stands for all of them, by NCCL's kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost.collectives import all_reduce_sends, share_out_sends
from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

_KIND = re.compile(r"nccl(?:Dev)?Kernel_(AllReduce|AllGather|ReduceScatter)", re.IGNORECASE)


def _all_reduce(call: Call, ranks: int) -> Work | None:
    """`all_reduce(…, x, …)`: the first tensor; as much is written as read, a sum for each element and other rank."""
    if not call.tensors:
        return None
    first = call.tensors[0]
    return Work(
        2 * call.bytes(first), (ranks - 1) * call.elements(first), sent_bytes=all_reduce_sends(ranks, call.bytes(first))
    )


def _into_first(call: Call, ranks: int) -> Work | None:
    """`all_gather(out, x)`, `all_to_all(out, x)`: the larger of both is the whole."""
    if len(call.tensors) < 2:
        return None
    sizes = [call.bytes(index) for index in call.tensors[:2]]
    return Work(sum(sizes), sent_bytes=share_out_sends(ranks, max(sizes)))


def _gather(call: Call, ranks: int) -> Work | None:
    """`all_gather(x, …)`: the result is as many times as large as there are ranks."""
    if not call.tensors:
        return None
    mine = call.bytes(call.tensors[0])
    return Work((ranks + 1) * mine, sent_bytes=share_out_sends(ranks, ranks * mine))


def _scatter(call: Call, ranks: int) -> Work | None:
    """`reduce_scatter(x, …)`: a share of x stays."""
    if not call.tensors:
        return None
    whole = call.bytes(call.tensors[0])
    return Work(whole + whole / ranks, sent_bytes=share_out_sends(ranks, whole))


def _by_kernel(call: Call, ranks: int) -> Work | None:
    """`record_param_comms(x, …)`: torch's own record of a collective, of which only the input is told."""
    kind = _KIND.search(call.kernel[:LOOKED_AT])
    costs = {"allreduce": _all_reduce, "allgather": _gather, "reducescatter": _scatter}
    return costs[kind[1].lower()](call, ranks) if kind else None


COSTS: Mapping[str, Callable[[Call, int], Work | None]] = {
    "record_param_comms": _by_kernel,
    **dict.fromkeys(
        (
            "_C_custom_ar::all_reduce",
            "_C_custom_ar::qr_all_reduce",
            "sgl_kernel::all_reduce",
            "sgl_kernel::qr_all_reduce",
            "sglang::inplace_all_reduce",
            "sglang::outplace_all_reduce",
            "vllm::all_reduce",
            "_c10d_functional::all_reduce",
            "_c10d_functional::all_reduce_",
            "symm_mem::multimem_all_reduce_",
            "symm_mem::one_shot_all_reduce",
            "symm_mem::two_shot_all_reduce_",
        ),
        _all_reduce,
    ),
    **dict.fromkeys(
        (
            "c10d::_allgather_base_",
            "c10d::_reduce_scatter_base_",
            "c10d::alltoall_base_",
            "sglang::reg_all_gather_into_tensor",
            "sglang::reg_reduce_scatter_tensor",
        ),
        _into_first,
    ),
    "vllm::all_gather": _gather,
    "_c10d_functional::all_gather_into_tensor": _gather,
    "vllm::reduce_scatter": _scatter,
    "_c10d_functional::reduce_scatter_tensor": _scatter,
}
"""Signatures: torch's distributed/c10d/Ops.cpp, Functional.cpp and SymmetricMemory.cpp, vLLM's parallel_state.py and
csrc/torch_bindings.cpp (custom_ar), SGLang's parallel_state.py and sgl-kernel's common_extension.cc."""
