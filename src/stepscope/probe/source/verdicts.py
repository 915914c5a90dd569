"""What the records of a backend come to: is the whole pool cast, and of which type is `plan()` told the pool is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.document import Answer, DeterminedBy, Site
from stepscope.probe.answers import no, untold, yes
from stepscope.probe.source.values import Dtype, Kind, Name, Parameter, SelfAttribute, Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.probe.source.records import PlanCall, PoolUse, Records
    from stepscope.probe.source.values import Value, Values

_CODE = DeterminedBy.BACKEND_CODE
_DECODE, _EXTEND = ("decode", "mqa"), ("extend", "prefill", "mha")


def pool_cast(records: Records) -> tuple[Answer, list[Site]]:
    """Return whether the whole pool is cast, and where."""
    sites = _merged([(use, _target(use.target), _is_cast(use)) for use in records.uses])
    certain = [site for site in sites if site.is_certain]
    if certain:
        first = next((site for site in certain if "decode" in site.phases), certain[0])
        phases = " and ".join(sorted({phase for site in certain for phase in site.phases})) or first.function
        return yes(f"{phases}: the whole pool is cast to {first.given}", _CODE, _at(first)), sites
    if sites:
        return untold(f"whether {sites[0].statement} casts cannot be told", _CODE, _at(sites[0])), sites
    if records.gave_up:
        return untold("the source is too entangled to follow all of it"), sites
    if not records.reads:
        return untold("no read of a KV pool was recognised in its source"), sites
    return no(f"{len(records.reads)} reads of the pool, none of them cast", _CODE), sites


def plan_dtype(records: Records) -> tuple[Answer | None, list[Site]]:
    """Return whether `plan()` is given the queries' type for the pool, and where; None: it calls none."""
    calls = _without_unbound(records.plans)
    if not calls:
        return None, []
    sites = _merged([(call, _target(call.pool), _is_query_type(call) is not None) for call in calls])
    wrong = {call.place for call in calls if _is_query_type(call)}
    first = next(
        (site for site in sites if (site.file, site.line) in {(place.file, place.line) for place in wrong}), None
    )
    if first is not None:
        also = "" if len(wrong) == len({call.place for call in calls}) else f", in {len(wrong)} of its calls"
        return yes(f"kv_data_type is {first.given}, the queries' type{also}", _CODE, _at(first)), sites
    if any(_is_query_type(call) is None for call in calls):
        site = next((site for site in sites if not site.is_certain), sites[0])
        return untold(f"what kv_data_type is cannot be told from the source: {site.given}", _CODE, _at(site)), sites
    return no(f"kv_data_type is {sites[0].given}, the pool's own type", _CODE, _at(sites[0])), sites


def _is_cast(use: PoolUse) -> bool:
    kinds = {one.kind for one in use.target if isinstance(one, Dtype)}
    return use.how == "cast" and bool(kinds) and Kind.UNKNOWN not in kinds


def _is_query_type(call: PlanCall) -> bool | None:
    """Tell whether `kv_data_type` is the queries' type, or one of 16 bits by name; None: that cannot be told."""
    kinds = {one.kind if isinstance(one, Dtype) else Kind.UNKNOWN for one in call.pool}
    if not kinds or Kind.UNKNOWN in kinds or (len(kinds) > 1 and kinds != {Kind.QUERY, Kind.OTHER}):
        return None if kinds != {Kind.POOL, Kind.FLOAT8} else False
    return kinds <= {Kind.QUERY, Kind.OTHER}


def _without_unbound(calls: Iterable[PlanCall]) -> list[PlanCall]:
    """Leave out what a function was followed for by itself, with unknown arguments, where a caller gives them."""
    known = {call.place for call in calls if not _is_unbound(call.pool)}
    return [call for call in calls if call.place not in known or not _is_unbound(call.pool)]


def _is_unbound(values: Values) -> bool:
    return bool(values) and all(isinstance(value, Parameter) for value in values)


def _merged(found: list[tuple[PoolUse | PlanCall, str, bool]]) -> list[Site]:
    """Return a site for each place, in their order: one place can be reached from several methods and classes."""
    places = sorted({row[0].place for row in found}, key=lambda place: (place.file, place.line, place.end_line))
    sites = []
    for place in places:
        rows = [row for row in found if row[0].place == place]
        given = " or ".join(sorted({row[1] for row in rows}))
        conditions = list(dict.fromkeys(condition for one, *_ in rows for condition in one.conditions))
        phases = sorted({phase for one, *_ in rows for phase in _phases((one.root, place.function))})
        sites.append(
            Site(
                file=place.file,
                line=place.line,
                end_line=place.end_line,
                function=place.function,
                statement=place.statement,
                phases=phases,
                given=given,
                is_certain=any(row[2] for row in rows),
                conditions=conditions,
            )
        )
    return sites


def _phases(functions: Iterable[str]) -> set[str]:
    text = " ".join(functions).lower()
    return {name for name, words in (("decode", _DECODE), ("extend", _EXTEND)) if any(word in text for word in words)}


def _target(values: Values) -> str:
    return " or ".join(sorted({_text(value) for value in values})) or "something unknown"


def _text(value: Value) -> str:
    match value:
        case Dtype():
            return value.text
        case Name(path):
            return path
        case SelfAttribute(name):
            return f"self.{name}"
        case Parameter(name):
            return name
        case Text():
            return repr(value.value)
        case _:
            return type(value).__name__.lower()


def _at(site: Site) -> str:
    return f"{site.file}:{site.line}"
