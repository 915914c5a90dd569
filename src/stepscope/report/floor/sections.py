"""What a floor says, as tables and plots that every format draws."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.report.floor.bars import Bar, bars
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.document import Amortisation, BatchCost, Floor, FloorCase


class Table(NamedTuple):
    """Rows under a header."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    texts: frozenset[int] = frozenset({0})
    """Columns of text, which stand to the left."""


class Plot(NamedTuple):
    """Lines of equal-width characters."""

    title: str
    lines: Sequence[str]


def summary(floor: Floor) -> Iterator[str]:
    """Yield the lines that say it all."""
    yield _case(floor.case)
    rate = f"{_rate(floor.tokens_per_s)} tokens/s"
    if floor.case.batch > 1:
        rate += f", {_rate(floor.tokens_per_s_per_stream)} a stream"
    yield f"floor {units.time(floor.floor_us_per_step)} a step, {rate}"
    if floor.measured_us is not None and floor.unexplained_us is not None:
        times = floor.measured_us / floor.floor_us_per_step
        if times < 1:
            below = f"{units.time(-floor.unexplained_us)} below the floor"
            yield f"measured {units.time(floor.measured_us)}, {below}: it did other work than this"
            return
        yield (
            f"measured {units.time(floor.measured_us)}, {units.count(round(times, 1))} times the floor:"
            f" {units.time(floor.unexplained_us)} beyond it"
        )


def sections(floor: Floor) -> Iterator[Table | Plot]:
    """Yield the tables and plots of a floor, in order."""
    yield Table(
        "Least time by component",
        ("component", "time", "share", "bytes", "FLOP", "bound by"),
        [
            (
                part.name,
                units.time(part.time_us),
                units.share(part.time_us / floor.floor_us_per_step),
                units.size(part.bytes),
                units.operations(part.flops),
                part.bound,
            )
            for part in floor.components
        ],
        frozenset({0, 5}),
    )
    if floor.waterfall:
        yield from _waterfall(floor)
    if floor.amortisation is not None:
        yield from _amortisation(floor.amortisation)
    yield from _growth(floor)


def _case(case: FloorCase) -> str:
    ranks = [f"TP {case.tp}"]
    ranks += [f"{name} {number}" for name, number in (("EP", case.ep), ("DP", case.dp)) if number > 1]
    return printable(
        f"{case.model}, {', '.join(ranks)}, {case.gpu}; weights {case.weights}, KV {case.kv_dtype};"
        f" batch {case.batch:,}, context {case.context:,}"
    )


def _waterfall(floor: Floor) -> Iterator[Table | Plot]:
    at = 0.0
    rows = []
    for row in floor.waterfall:
        us = row.floor_us if row.measured_us is None else row.measured_us
        beyond = min(max(row.gap_us or 0.0, 0.0), us)
        rows.append(Bar(row.name, us, units.time(us), at, beyond))
        at += us
    rows.append(Bar("measured", at, units.time(at), 0.0, max(at - floor.floor_us_per_step, 0.0)))
    traced = [row for row in floor.waterfall if row.measured_us is not None]
    if len(traced) > 1:
        yield Table(
            "From the floor to the traced step",
            ("part", "floor", "measured", "beyond", "components of the floor"),
            [
                (
                    row.name,
                    units.time(row.floor_us),
                    units.time(row.measured_us or 0.0),
                    units.time(row.gap_us or 0.0),
                    ", ".join(row.components) or "none",
                )
                for row in traced
            ],
            frozenset({0, 4}),
        )
    yield Plot("Waterfall (# the floor, + beyond it)", bars(rows))


def _amortisation(found: Amortisation) -> Iterator[Table | Plot]:
    certainty = " (two points: no error can be told)" if found.step.residual_us is None else ""
    yield Table(
        f"Fixed and batch-proportional costs{certainty}",
        ("part", "fixed", "± error", "per request", "residual"),
        [_cost_row(cost) for cost in (found.step, *found.parts)],
    )
    yield Table(
        "What does not amortise",
        ("batch", "step", "share that grows with the batch", "steps", "trace"),
        [
            (
                f"{point.batch_size:,}",
                units.time(point.duration_us),
                "not known" if share is None else units.share(share),
                f"{point.steps:,}",
                printable(PurePath(point.trace).name),
            )
            for point, share in zip(found.points, found.proportional_share, strict=True)
        ],
        frozenset({4}),
    )


def _cost_row(cost: BatchCost) -> tuple[str, ...]:
    error, residual = ("not known" if us is None else units.time(us) for us in (cost.fixed_error_us, cost.residual_us))
    return cost.name, units.time(cost.fixed_us), error, units.time(cost.per_request_us), residual


def _growth(floor: Floor) -> Iterator[Table | Plot]:
    points = {(point.batch, point.context): point for point in floor.growth}
    batches = sorted({batch for batch, _ in points})
    contexts = sorted({context for _, context in points})
    yield Table(
        "Floor of a step by batch and context",
        ("context", *(f"batch {batch:,}" for batch in batches)),
        [
            (
                f"{context:,}",
                *(units.time(points[batch, context].floor_us_per_step) for batch in batches),
            )
            for context in contexts
        ],
        frozenset(),
    )
    by_batch = [points[batch, floor.case.context] for batch in batches]
    yield Plot(
        f"Tokens/s by batch, context {floor.case.context:,}",
        bars([Bar(f"{point.batch:>7,}", point.tokens_per_s, _rate(point.tokens_per_s)) for point in by_batch]),
    )
    by_context = [points[floor.case.batch, context] for context in contexts]
    yield Plot(
        f"Floor of a step by context, batch {floor.case.batch:,}",
        bars(
            [
                Bar(f"{point.context:>7,}", point.floor_us_per_step, units.time(point.floor_us_per_step))
                for point in by_context
            ]
        ),
    )


def _rate(tokens_per_s: float) -> str:
    return units.count(round(tokens_per_s, 1)) if tokens_per_s < 1000 else f"{tokens_per_s:,.0f}"
