"""Sampling: probabilities or logits read once, and what is given for the result written once.

Signatures: sgl-kernel's common_extension.cc, FlashInfer's csrc/sampling, vLLM's csrc/torch_bindings.cpp. torch's own
(`argmax`, `topk`, `sort`, `multinomial`) are reductions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.pipeline.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.pipeline.cost.ops.call import Call

_NAMES = (
    "top_k_top_p_sampling_from_probs top_p_sampling_from_probs top_k_sampling_from_probs min_p_sampling_from_probs "
    "sampling_from_probs top_k_renorm_probs top_p_renorm_probs top_k_mask_logits"
)


def _sample(call: Call) -> Work | None:
    """`sampling(probabilities [b, v], …)`: every tensor once, an operation a probability."""
    return Work(call.all_bytes, call.elements(0)) if call.is_tensor(0, 2) else None


def _penalise(call: Call) -> Work | None:
    """`apply_repetition_penalties_(logits, prompt mask, output mask, penalties)`: logits read and written."""
    return Work(call.all_bytes + call.bytes(0), call.elements(0)) if call.is_tensor(0, 2) else None


def _drawn(call: Call) -> Work | None:
    """`exponential_(values)` and its kind: written, not read."""
    return Work(call.bytes(0), call.elements(0)) if call.is_tensor(0) else None


COSTS: Mapping[str, Callable[[Call], Work | None]] = {
    **{f"{library}::{name}": _sample for library in ("sgl_kernel", "flashinfer") for name in _NAMES.split()},
    "_C::apply_repetition_penalties_": _penalise,
    **{f"aten::{name}_": _drawn for name in ("exponential", "normal", "random", "uniform")},
}
