"""What the installed FlashInfer says of MLA: its `run()`, and what its `plan()` and its checks refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.document import DeterminedBy
from stepscope.probe.answers import no, untold, yes
from stepscope.probe.source.outcomes import UNKNOWN, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.document import Answer
    from stepscope.probe.case import Case
    from stepscope.probe.source.outcomes import Facts, Outcome
    from stepscope.probe.source.program import Callee

_WRAPPER = "BatchMLAPagedAttentionWrapper"
_WRAPPER_MODULES = ("flashinfer.mla._batch_mla._wrapper", "flashinfer.mla._core", "flashinfer.mla")
_PLAN_CHECK = ("flashinfer.mla._batch_mla._backends._fa_common", "_validate_generated_fa_plan")
_SHAPE_MODULES = (
    *("flashinfer.mla._batch_mla._backends.trtllm_gen_backend", "flashinfer.mla._core", "flashinfer.mla"),
    "flashinfer.decode",
)


def reads_fp8(case: Case) -> Answer:
    """Return whether `BatchMLAPagedAttentionWrapper` reads an FP8 pool with BF16 queries on this GPU."""
    run = _method(case, "run")
    if run is None:
        return untold(_missing(case))
    arguments = run.function.args
    at = f"{run.module.file.path}:{run.function.lineno}"
    if not any(one.arg == "ckv_scale" for one in (*arguments.args, *arguments.kwonlyargs)):
        reason = "its run() takes no scale of the pool (ckv_scale), so it is of a version without FP8 MLA"
        return no(reason, DeterminedBy.SIGNATURE, at)
    refused = _refusal(_plans(case), _plan_facts(case))
    if refused is not None:
        return _of_refusal(refused, run, "")
    if case.capability is None:
        return untold("the GPU is not known")
    reason = f"its run() takes ckv_scale, and its plan() refuses nothing on {case.gpu}"
    return yes(reason, DeterminedBy.LIBRARY_CODE, at)


def takes_head_sizes(case: Case) -> Answer:
    """Return whether `plan()` takes the model's latent and rotary widths."""
    plans = list(_plans(case))
    if not plans or case.model is None:
        return untold(_missing(case))
    facts = {"head_dim_ckv": case.model.kv_lora_rank, "head_dim_kpe": case.model.qk_rope_head_dim}
    return _of_refusal(_refusal(plans, facts), plans[0], "its plan() refuses neither width")


def shape_check(case: Case, function: str) -> Answer:
    """Return whether a check of FlashInfer's takes the model's head sizes."""
    for name in _SHAPE_MODULES:
        module = case.program.module(name)
        callee = None if module is None else case.program.find_function(module, function)
        if callee is not None:
            return _of_refusal(_refusal([callee], case.sizes), callee, f"{function}() refuses none of them")
    return untold(_missing(case, f"{function}()"))


def _method(case: Case, name: str) -> Callee | None:
    for module_name in _WRAPPER_MODULES:
        module = case.program.module(module_name)
        cls = None if module is None else case.program.find_class(module, _WRAPPER)
        if cls is not None:
            return case.program.method(cls, name)
    return None


def _plans(case: Case) -> Iterator[Callee]:
    """Yield what checks the arguments of `plan()`: a function of its own in newer versions, before them itself."""
    module = case.program.module(_PLAN_CHECK[0])
    found = None if module is None else case.program.find_function(module, _PLAN_CHECK[1])
    found = found or _method(case, "plan")
    if found is not None:
        yield found


def _plan_facts(case: Case) -> Facts:
    """Return an FP8 pool and BF16 queries on this GPU, and what `backend="auto"` chooses there."""
    major = None if case.capability is None else case.capability[0]
    backend: Any = UNKNOWN if major is None else "fa3" if major == 9 else "fa2"
    facts: dict[str, Any] = {
        "q_data_type": "torch.bfloat16",
        "kv_data_type": "torch.float8_e4m3fn",
        "output_dtype": "torch.bfloat16",
        "scale_mode": "kv-per-tensor",
        "backend": backend,
        "self._backend": backend,
        "get_compute_capability()": lambda *_: UNKNOWN if case.capability is None else case.capability,
        "is_sm90a_supported()": lambda *_: UNKNOWN if major is None else major == 9,
    }
    if case.model is not None:
        facts |= {"head_dim_ckv": case.model.kv_lora_rank, "head_dim_kpe": case.model.qk_rope_head_dim}
    return facts


def _refusal(callees: Iterable[Callee], facts: Facts) -> tuple[Outcome, str] | None:
    """Return the first certain refusal that these facts decide about, else the first possible one, and where it is."""
    possible = None
    for callee in callees:
        for outcome in Reading(callee, facts).outcomes():
            if outcome.how == "return" or not outcome.is_relevant:
                continue
            found = outcome, f"{callee.module.file.path}:{outcome.line}"
            if outcome.is_certain:
                return found
            possible = possible or found
    return possible


def _of_refusal(refused: tuple[Outcome, str] | None, callee: Callee, if_none: str) -> Answer:
    if refused is None:
        at = f"{callee.module.file.path}:{callee.function.lineno}"
        return yes(if_none, DeterminedBy.LIBRARY_CODE, at)
    outcome, at = refused
    if outcome.is_certain:
        return no(f"refused: {outcome.text}", DeterminedBy.LIBRARY_CODE, at)
    return untold(f"may be refused: {outcome.text}", DeterminedBy.LIBRARY_CODE, at)


def _missing(case: Case, what: str = _WRAPPER) -> str:
    if "flashinfer" not in case.folders:
        return "flashinfer is not installed in this interpreter"
    return f"{what} is not in the installed flashinfer"
