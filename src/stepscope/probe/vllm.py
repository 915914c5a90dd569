"""vLLM's attention backends for MLA: their classes declare types, GPUs and head sizes, which are read, not asked."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from stepscope.document import DeterminedBy, MlaBackend
from stepscope.probe import flashinfer
from stepscope.probe.answers import no, untold, yes
from stepscope.probe.source import verdicts
from stepscope.probe.source.outcomes import UNKNOWN, Reading
from stepscope.probe.source.program import Callee, dotted
from stepscope.probe.source.records import Records
from stepscope.probe.source.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.document import Answer
    from stepscope.probe.case import Case
    from stepscope.probe.source.outcomes import Facts
    from stepscope.probe.source.program import ClassInfo

_BACKENDS = "vllm.v1.attention.backends.mla"
_QUANTISES_QUERY = "supports_quant_query_input"
_CODE = DeterminedBy.BACKEND_CODE
_TRTLLM_CALL = "trtllm_batch_decode_with_kv_cache_mla"
_FP8 = {"fp8", "fp8_e4m3"}


def backends(case: Case) -> list[MlaBackend]:
    """Return the backends that this version of vLLM has for MLA, by file and class."""
    folder = f"{case.folders['vllm']}/v1/attention/backends/mla"
    found = []
    for file in case.files.names(folder):
        module = case.program.module(f"{_BACKENDS}.{file.removesuffix('.py')}") if file.endswith(".py") else None
        for cls in () if module is None else module.classes.values():
            name = _returned_text(case, cls, "get_name")
            impl = _implementation(case, cls)
            if name is not None and impl is not None and "get_name" in cls.methods:
                found.append(_backend(case, cls, name, impl))
    return found


def _backend(case: Case, cls: ClassInfo, name: str, impl: ClassInfo) -> MlaBackend:
    records = Records()
    walk = Walk(case.program, records)
    walk.follow_class(impl)
    for other in cls.module.classes.values():
        if other is not impl and other is not cls:
            walk.follow_class(other)
    cast, cast_sites = verdicts.pool_cast(records)
    plan, plan_sites = verdicts.plan_dtype(records)
    return MlaBackend(
        engine="vllm",
        name=name,
        cls=cls.name,
        file=cls.module.file.path,
        is_chosen=case.is_chosen(name),
        fp8_kv=_reads_fp8(case, cls, impl, cast),
        pool_cast=cast,
        pool_cast_sites=cast_sites,
        plan_dtype=plan,
        plan_sites=plan_sites,
        head_sizes=None if case.model is None else _takes_sizes(case, cls),
    )


def _reads_fp8(case: Case, cls: ClassInfo, impl: ClassInfo, cast: Answer) -> Answer:  # noqa: PLR0911 -- each answer has its reason
    if cast.answer:
        return no(f"it casts the whole pool first: {cast.reason}", _CODE, cast.at)
    types = _declared(case, cls, "supported_kv_cache_dtypes")
    if types is not None and not _FP8 & set(types[0]):
        return no("it does not declare an FP8 type for the cache", _CODE, types[1])
    refused = _refuses_fp8(case, impl)
    if refused is not None:
        return no(f"it refuses an FP8 cache: {refused[0]}", _CODE, refused[1])
    fits = _fits_gpu(case, cls)
    if fits is not None and fits.answer is not True:
        return fits
    quantises = _quantises_query(case, impl)
    if quantises is None:
        return untold("whether it makes the queries FP8 too is not declared in its source")
    answer, at = quantises
    if answer is None:
        return untold(f"{_QUANTISES_QUERY} is worked out when it runs")
    if answer:
        return no(f"with an FP8 cache it takes FP8 queries ({_QUANTISES_QUERY} is True)", _CODE, at)
    if types is None:
        return untold("its class declares no types for the cache")
    return yes(f"it declares FP8 for the cache and no FP8 queries ({_QUANTISES_QUERY} is False)", _CODE, at)


def _takes_sizes(case: Case, cls: ClassInfo) -> Answer:
    size = case.sizes["kv_lora_rank"] + case.sizes["qk_rope_head_dim"]
    listed = case.program.method(cls, "get_supported_head_sizes")
    at = f"{cls.module.file.path}:{cls.node.lineno}"
    if listed is not None:
        outcome = next((one for one in Reading(listed, {}).outcomes() if one.how == "return"), None)
        at = f"{listed.module.file.path}:{listed.function.lineno}"
        if outcome is not None and isinstance(outcome.value, tuple) and outcome.value and size not in outcome.value:
            return no(f"its head sizes are {', '.join(map(str, outcome.value))}, not {size}", _CODE, at)
    combination = case.program.method(cls, "supports_combination")
    facts: dict[str, Any] = {**case.sizes, "get_current_vllm_config()": UNKNOWN, **_gpu_facts(case)}
    if combination is not None:
        reading = Reading(combination, facts)
        for outcome in reading.outcomes():
            refuses = outcome.how == "raise" or (outcome.value is not None and bool(outcome.text))
            if refuses and outcome.is_relevant and any(name in outcome.text for name in case.sizes):
                where = f"{combination.module.file.path}:{outcome.line}"
                return no(outcome.text, _CODE, where) if _is_sure(outcome.text) else untold(outcome.text)
    if _TRTLLM_CALL in cls.module.file.text and "flashinfer" in case.folders:
        library = flashinfer.shape_check(case, "_check_trtllm_gen_mla_shape")
        if library.answer is False:
            return library
    return yes(f"it refuses neither {size} nor the other sizes", _CODE, at)


def _is_sure(text: str) -> bool:
    return "…" not in text


def _fits_gpu(case: Case, cls: ClassInfo) -> Answer | None:
    """Return whether the class declares this GPU as supported; None: it declares nothing."""
    declared = case.program.method(cls, "supports_compute_capability")
    if declared is None:
        return None
    at = f"{declared.module.file.path}:{declared.function.lineno}"
    outcomes = Reading(declared, _gpu_facts(case)).outcomes()
    values = {outcome.value for outcome in outcomes if outcome.how == "return"}
    if values == {True}:
        return yes(f"it declares {case.gpu}", _CODE, at)
    if values == {False}:
        return no(f"it is not for {case.gpu}", _CODE, at)
    return untold(
        "the GPU is not known" if case.capability is None else "which GPUs it is for is worked out when it runs"
    )


def _gpu_facts(case: Case) -> Facts:
    if case.capability is None:
        return {"major": UNKNOWN, "minor": UNKNOWN, "has_device_capability()": lambda *_: UNKNOWN}
    number = case.capability[0] * 10 + case.capability[1]
    return {
        "major": case.capability[0],
        "minor": case.capability[1],
        "is_cuda()": lambda *_: True,
        "has_device_capability()": lambda *given: number >= given[0] if given and type(given[0]) is int else UNKNOWN,
    }


def _refuses_fp8(case: Case, impl: ClassInfo) -> tuple[str, str] | None:
    """Return what the implementation raises for an FP8 cache, and where."""
    facts: dict[str, Any] = {
        "self.kv_cache_dtype": "fp8",
        "kv_cache_dtype": "fp8",
        "is_quantized_kv_cache()": lambda *_: True,
        **_gpu_facts(case),
    }
    for name in ("__init__", "forward_mqa", "_forward_decode"):
        callee = case.program.method(impl, name)
        if callee is None or callee.owner is None or "Common" in callee.owner.name:
            continue
        for node in ast.walk(callee.function):
            if not isinstance(node, ast.If) or not any(isinstance(one, ast.Raise) for one in node.body):
                continue
            test = Reading(callee, facts).value(node.test)
            text = ast.unparse(node.test)
            if test is True and ("is_quantized_kv_cache" in text or "kv_cache_dtype" in text):
                raised = Reading(Callee(_only(node.body), callee.module), facts).outcomes()
                return raised[0].text, f"{callee.module.file.path}:{node.lineno}"
    return None


def _only(body: list[ast.stmt]) -> ast.FunctionDef:
    """Return a function of these statements alone."""
    return ast.FunctionDef("", ast.arguments([], [], None, [], [], None, []), body, [], None, None)


def _quantises_query(case: Case, impl: ClassInfo) -> tuple[bool | None, str] | None:
    """Return what the nearest class for MLA says of FP8 queries, and where; None: none says anything."""
    for owner in case.program.lineage(impl):
        if "MLA" not in owner.name:
            return None
        found = [(node.value, node.lineno) for node in _assignments(owner) if _assigns(node)]
        values = {value.value if isinstance(value, ast.Constant) else None for value, _ in found}
        if found:
            value = values.pop() if len(values) == 1 else None
            return value if isinstance(value, bool) else None, f"{owner.module.file.path}:{found[0][1]}"
    return None


def _assignments(owner: ClassInfo) -> Iterator[ast.Assign]:
    yield from (node for node in ast.walk(owner.node) if isinstance(node, ast.Assign))


def _assigns(node: ast.Assign) -> bool:
    return any((dotted(target) or "").removeprefix("self.") == _QUANTISES_QUERY for target in node.targets)


def _declared(case: Case, cls: ClassInfo, name: str) -> tuple[list[str], str] | None:
    """Return the strings of a list in the body of the nearest class that has it, and where."""
    for owner in case.program.lineage(cls):
        value = owner.constants.get(name)
        if isinstance(value, ast.List | ast.Tuple):
            texts = [one.value for one in value.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            return texts, f"{owner.module.file.path}:{value.lineno}"
    return None


def _implementation(case: Case, cls: ClassInfo) -> ClassInfo | None:
    callee = case.program.method(cls, "get_impl_cls")
    for node in () if callee is None else ast.walk(callee.function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and callee is not None:
            return case.program.find_class(callee.module, node.value.id)
    return None


def _returned_text(case: Case, cls: ClassInfo, method: str) -> str | None:
    callee = case.program.method(cls, method)
    outcomes = [] if callee is None else Reading(callee, {}).outcomes()
    return next((one.value for one in outcomes if one.how == "return" and isinstance(one.value, str)), None)
