"""From the floor to the measured step: what each part takes beyond its least time, and what the floor does without."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope import document
from stepscope.pipeline.attribute.kernel_class import UNCLASSIFIED
from stepscope.pipeline.cost.floor import components as named
from stepscope.pipeline.cost.floor.least import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.pipeline.cost.floor.measured import MeasuredSteps

UNEXPLAINED = "unexplained"
IDLE = "idle"


class _Match(NamedTuple):
    """Components of the floor, and the kernel class that does their work."""

    name: str
    kernel_class: str
    components: tuple[str, ...]


_LINEAR = _Match(
    "linear layers",
    "gemm",
    (named.PROJECTIONS, named.INDEX, named.DENSE_MLP, named.ROUTER, named.SHARED_EXPERT, named.LM_HEAD),
)
_BY_PLAIN_GEMM_TOO = (
    _Match("experts", "moe-gemm", (named.EXPERTS,)),
    _Match("attention", "attention", (named.KV_READ,)),
)
"""Where a step has no kernels of these classes, plain matrix multiplications do the work."""
_OTHERS = (
    _Match("routing", "routing", (named.ROUTING,)),
    _Match("norms", "norm", (named.NORMS,)),
    _Match("cache writes and embedding", "gather", (named.KV_APPEND, named.EMBEDDING)),
    _Match("sampling", "sampling", (named.SAMPLING,)),
    _Match("collectives", "collective", (COLLECTIVES,)),
)


def of_total(components: Sequence[document.FloorComponent], measured_us: float) -> list[document.WaterfallRow]:
    """Return the way to a step of which only the whole was measured: what is beyond the floor is unexplained."""
    rows = [_row(part.name, [part.name], [], part.time_us, None) for part in components]
    rest = measured_us - sum(part.time_us for part in components)
    return [*rows, _row(UNEXPLAINED, [], [], 0.0, rest)]


def of_steps(components: Sequence[document.FloorComponent], steps: MeasuredSteps) -> list[document.WaterfallRow]:
    """Return the way to the median step of a trace, part by part; the largest gaps first, the unexplained last.

    Classes that the floor has no component for are rows of their own. What no class or component names is unexplained:
    kernels of no known class, and time without GPU work where the trace is not complete.
    """
    rows = list(_matched(components, steps.class_us))
    known = {row.kernel_classes[0] for row in rows} | {UNCLASSIFIED}
    rows += [_row(name, [], [name], 0.0, us) for name, us in steps.class_us.items() if name not in known]
    if steps.is_complete:
        rows.append(_row(IDLE, [], [], 0.0, steps.idle_us))
    rest = steps.class_us.get(UNCLASSIFIED, 0.0) + (0.0 if steps.is_complete else steps.idle_us)
    classes = [UNCLASSIFIED] if UNCLASSIFIED in steps.class_us else []
    return [*sorted(rows, key=lambda row: -(row.gap_us or 0.0)), _row(UNEXPLAINED, [], classes, 0.0, rest)]


def _matched(
    components: Sequence[document.FloorComponent], class_us: Mapping[str, float]
) -> Iterator[document.WaterfallRow]:
    """Yield what the model has components of, or the trace kernels of."""
    floor_us = {part.name: part.time_us for part in components}
    for match in _matches(class_us):
        present = [name for name in match.components if name in floor_us]
        if present or match.kernel_class in class_us:
            least = sum(floor_us[name] for name in present)
            yield _row(match.name, present, [match.kernel_class], least, class_us.get(match.kernel_class, 0.0))


def _matches(class_us: Mapping[str, float]) -> Iterator[_Match]:
    apart = [match for match in _BY_PLAIN_GEMM_TOO if match.kernel_class in class_us]
    joined = [name for match in _BY_PLAIN_GEMM_TOO if match not in apart for name in match.components]
    yield _LINEAR._replace(components=(*_LINEAR.components, *joined))
    yield from apart
    yield from _OTHERS


def _row(
    name: str, components: list[str], kernel_classes: list[str], floor_us: float, measured_us: float | None
) -> document.WaterfallRow:
    return document.WaterfallRow(
        name=name,
        components=components,
        kernel_classes=kernel_classes,
        floor_us=floor_us,
        measured_us=measured_us,
        gap_us=None if measured_us is None else measured_us - floor_us,
    )
