"""SGLang's attention backends for MLA, by their installed source and, where that does not tell, by `sglang.toml`."""

from __future__ import annotations

import ast
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from stepscope.document import DeterminedBy, MlaBackend
from stepscope.probe import flashinfer
from stepscope.probe.answers import no, untold, yes
from stepscope.probe.source import verdicts
from stepscope.probe.source.records import Records
from stepscope.probe.source.values import POOL_GETTERS, POOLS_GETTERS
from stepscope.probe.source.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.document import Answer, Site
    from stepscope.probe.case import Case
    from stepscope.probe.source.program import Module

_ATTENTION = "sglang.srt.layers.attention"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `sglang.toml`."""

    name: str
    module: str
    cls: str = msgspec.field(name="class")
    majors: list[int] = []
    """Major compute capabilities that its kernel is built for; none: no statement."""
    capability: str | None = None
    """The least one that reads FP8."""
    library: str | None = None
    """Whose source tells what the kernel can."""
    kernels: list[str] = []
    """Modules to look for the calls in; none: the backend's own."""
    fp8_query_calls: list[str] = []
    """Functions, or whole calls, that make the queries FP8."""
    reads_fp8: bool | None = None
    reason: str | None = None
    source: str | None = None
    head_sizes: dict[str, list[int]] | None = None
    head_source: str | None = None
    head_check: str | None = None
    """The function of FlashInfer's that checks them."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    backend: list[Row]


def rows() -> list[Row]:
    """Return the table."""
    text = (resources.files("stepscope.probe") / "sglang.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table).backend


def backends(case: Case) -> list[MlaBackend]:
    """Return the backends that this version of SGLang has, the table's first, then others that cast the whole pool."""
    known = rows()
    found = [backend for row in known if (backend := _backend(case, row)) is not None]
    return [*found, *_others(case, {row.module for row in known})]


def _backend(case: Case, row: Row) -> MlaBackend | None:
    module = case.program.module(f"{_ATTENTION}.{row.module}")
    cls = None if module is None else case.program.find_class(module, row.cls)
    if module is None or cls is None:
        return None
    records = Records()
    walk = Walk(case.program, records)
    walk.follow_class(cls)
    if row.library is not None:  # FlashInfer's are planned by classes beside the backend's
        for other in module.classes.values():
            walk.follow_class(other)
    cast, cast_sites = verdicts.pool_cast(records)
    plan, plan_sites = verdicts.plan_dtype(records) if row.library is not None else (None, [])
    return MlaBackend(
        engine="sglang",
        name=row.name,
        cls=row.cls,
        file=module.file.path,
        is_chosen=case.is_chosen(row.name),
        fp8_kv=_reads_fp8(case, row, module, cast_sites, plan),
        pool_cast=cast,
        pool_cast_sites=cast_sites,
        plan_dtype=plan,
        plan_sites=plan_sites,
        head_sizes=None if case.model is None else _takes_sizes(case, row),
    )


def _others(case: Case, known: set[str]) -> Iterator[MlaBackend]:
    """Yield backends that the table does not know and whose source casts the whole pool."""
    folder = f"{case.folders['sglang']}/srt/layers/attention"
    for file in case.files.names(folder):
        name = file.removesuffix(".py")
        is_other = file.endswith("_backend.py") and name not in known
        text = case.files.read_text(f"{folder}/{file}") if is_other else None
        if text is None or not any(getter in text for getter in POOL_GETTERS | POOLS_GETTERS):
            continue
        module = case.program.module(f"{_ATTENTION}.{name}")
        if module is None:
            continue
        for cls in module.classes.values():
            records = Records()
            Walk(case.program, records).follow_class(cls)
            cast, sites = verdicts.pool_cast(records)
            if cast.answer and any(site.file == module.file.path for site in sites):
                reason = f"it casts the whole pool to {sites[0].given} first"
                yield MlaBackend(
                    engine="sglang",
                    name=name.removesuffix("_backend"),
                    cls=cls.name,
                    file=module.file.path,
                    is_chosen=case.is_chosen(name.removesuffix("_backend")),
                    fp8_kv=no(reason, DeterminedBy.BACKEND_CODE, cast.at),
                    pool_cast=cast,
                    pool_cast_sites=sites,
                    plan_dtype=None,
                    plan_sites=[],
                    head_sizes=None if case.model is None else untold("stepscope's table does not have it"),
                )


def _reads_fp8(case: Case, row: Row, module: Module, sites: list[Site], plan: Answer | None) -> Answer:  # noqa: C901, PLR0911 -- each answer has its reason
    """Return whether decode reads an FP8 pool as it lies, with queries of 16 bits; what excludes it first decides."""
    casts = [site for site in sites if site.is_certain and "decode" in site.phases]
    if casts:
        at = f"{casts[0].file}:{casts[0].line}"
        return no(f"decode casts the whole pool to {casts[0].given} first", DeterminedBy.BACKEND_CODE, at)
    if row.majors and case.capability is not None and case.capability[0] not in row.majors:
        built = " and ".join(f"SM{major}x" for major in row.majors)
        return no(f"its kernel is for {built}, not for {case.gpu}", DeterminedBy.VERSION_TABLE, row.source)
    modules = _kernels(case, row, module)
    if not modules:
        return untold("the source of its kernel was not found")
    call = _query_call(row, modules)
    if call is not None:
        return no(f"it makes the queries FP8 too: {call[0]}", DeterminedBy.BACKEND_CODE, call[1])
    if row.library is not None:
        if plan is not None and plan.answer:
            return no(f"plan() is told another type of the pool: {plan.reason}", DeterminedBy.BACKEND_CODE, plan.at)
        return flashinfer.reads_fp8(case)
    if row.reads_fp8 is None:
        return untold("neither its source nor stepscope's table tells")
    if row.reads_fp8 and (row.capability or row.majors) and case.capability is None:
        return untold("the GPU is not known")
    if row.capability is not None and case.capability is not None:
        least = tuple(map(int, row.capability.split(".")))
        if case.capability < least:
            return no(
                f"{case.gpu} has no FP8 in Triton, which begins with SM{least[0]}{least[1]}",
                DeterminedBy.VERSION_TABLE,
                row.source,
            )
    return (yes if row.reads_fp8 else no)(row.reason or "", DeterminedBy.VERSION_TABLE, row.source)


def _kernels(case: Case, row: Row, module: Module) -> list[Module]:
    """Return the modules in which a backend, or the kernel that it calls, would make queries FP8."""
    found = (case.program.module(name) for name in row.kernels)
    return [one for one in found if one is not None] if row.kernels else [module]


def _query_call(row: Row, modules: list[Module]) -> tuple[str, str] | None:
    """Return the call that makes the queries FP8, and where it is."""
    for one in modules:
        for node in ast.walk(one.file.tree):
            if not isinstance(node, ast.Call):
                continue
            text = ast.unparse(node.func)
            names = {text.rpartition(".")[2], ast.unparse(node) if len(node.args) == 1 else text}
            wanted = names & set(row.fp8_query_calls)
            if wanted:
                return wanted.pop(), f"{one.file.path}:{node.lineno}"
    return None


def _takes_sizes(case: Case, row: Row) -> Answer:
    if row.library is not None:
        return flashinfer.takes_head_sizes(case)
    if row.head_check is not None:
        return flashinfer.shape_check(case, row.head_check)
    if row.head_sizes is None:
        return untold("neither its source nor stepscope's table tells")
    for name, allowed in row.head_sizes.items():
        if case.sizes[name] not in allowed:
            wanted = " or ".join(map(str, allowed))
            return no(
                f"{name} is {case.sizes[name]}, and must be {wanted}",
                DeterminedBy.VERSION_TABLE,
                row.head_source,
            )
    reason = "it works on the latent and rotary widths, which are its own" if row.head_sizes else "its kernel takes any"
    return yes(reason, DeterminedBy.VERSION_TABLE, row.head_source)
