"""The ops of kernels that a graph replayed, from another trace of the same model: the donor.

A replayed kernel has no op of its own, so no shapes, types or stack. Two kinds of trace can tell them: an *eager twin*,
whose kernels have ops (it may be part of the same trace), and one recorded while the graph was *captured*. There,
ROCm's launches have no GPU rows, but name their kernels; CUDA's tell no name, but the eager passes that warm up for the
capture, in the same file, run the same kernels. In both, the donor is a sequence of named kernels with ops, and a
replay is lined up with a stretch of it, stream by stream: two streams interleave differently each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stepscope.pipeline.attribute.align import Runs, align
from stepscope.pipeline.link import NONE, find_op_of_launch
from stepscope.pipeline.steps import CAPTURE, GRAPH_LAUNCH
from stepscope.trace import TraceWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.link import Linked
    from stepscope.trace import Trace

    Ints = NDArray[np.int64]

MIN_ALIGNED = 0.65
"""Share of the replayed kernels that must line up by name and grid before any is joined.

Traces of one model reach 0.97 and more, also where one of its kernels was exchanged; those of other models on one
engine, which share fills, copies and norms, up to 0.32. What lines up ran with the same grid, so its shapes mostly
fit even where its neighbours were exchanged; not always, which is why a share below `GOOD_ALIGNED` is said.
"""
MIN_ALIGNED_BY_NAME = 0.95
"""The same where one side has no grids (ROCm's replays): names alone are also those of another batch size, whose GEMM
kernels differ and whose shapes would be wrong."""
GOOD_ALIGNED = 0.95
"""A smaller share of the replayed kernels' number or time is worth a warning."""

_END_CAPTURE = "StreamEndCapture"
_MOST_KERNELS = 1 << 14
"""A replay of more kernels is damage, and would take much memory to line up."""
_MOST_PAIRS = 1 << 12
"""So many pairs of streams, one of a replay and one of the donor, are lined up; a replay uses a few streams."""
_GRID = ("grid_x", "grid_y", "grid_z")
_AMBIGUOUS = TraceWarning(
    "capture-trace-ambiguous",
    "--capture-trace holds the captures of several graphs, and the replayed kernels have no grid: by name alone they"
    " may line up with those of another batch size, whose shapes differ",
)


class JoinMethod(StrEnum):
    """What kind of trace the ops come from."""

    EAGER_TWIN = "eager-twin"
    CAPTURE_LAUNCHES = "capture-launches"


@dataclass(frozen=True, slots=True)
class Donor:
    """A trace that can tell the ops of another's replayed kernels."""

    trace: Trace
    method: JoinMethod
    kernels: pl.DataFrame
    """`name`, grid, `device`, `stream` and `op` (row of `trace.ops`, or null) of its kernels, without what graphs
    replayed.

    They stand in the order in which they ran; after them, in order, those that were captured, which have no device.
    """

    captures: int
    """Graphs that were captured while recording."""

    @classmethod
    def of(cls, linked: Linked) -> Donor:
        """Prepare a trace once for all that it is joined to."""
        trace, kernels = linked.trace, linked.kernels
        called = trace.launches["name"].cast(pl.String)
        eager = np.delete(np.arange(kernels.height), _replayed(trace, kernels))
        ran = kernels[eager].filter(pl.col("launch").is_not_null())
        return cls(
            trace,
            JoinMethod.CAPTURE_LAUNCHES if called.str.contains(CAPTURE).any() else JoinMethod.EAGER_TWIN,
            pl.concat([ran.select("name", *_GRID, "device", "stream", "op"), _captured(trace)], how="diagonal"),
            int(called.str.contains(_END_CAPTURE).sum()),
        )


@dataclass(frozen=True, slots=True)
class Joined:
    """A trace joined to a donor, as far as they agree."""

    linked: Linked
    method: JoinMethod | None
    """None where nothing was joined."""
    aligned: NDArray[np.bool_]
    """Shape [kernels]: which were found in the donor, also where it has no op for them."""
    warnings: tuple[TraceWarning, ...] = ()


def join(linked: Linked, donor: Donor) -> Joined:
    """Give the kernels of graph replays the ops of the donor's kernels that they line up with."""
    replayed = _replayed(linked.trace, linked.kernels)
    nothing = np.zeros(linked.kernels.height, dtype=np.bool_)
    if not replayed.size:
        message = "no graph was replayed here, so --capture-trace has nothing to tell"
        return Joined(linked, None, nothing, (TraceWarning("capture-trace-unused", message),))
    with_grid = all(_has_grids(part) for part in (linked.kernels[replayed], donor.kernels))
    found = _find(linked, donor, replayed, ("name", *_GRID) if with_grid else ("name",))
    aligned = found != NONE
    duration = linked.kernels["duration_ns"].to_numpy()[replayed]
    time_share = float(duration[aligned[replayed]].sum() / max(duration.sum(), 1))
    share = float(aligned[replayed].mean())
    if share < (MIN_ALIGNED if with_grid else MIN_ALIGNED_BY_NAME):
        return Joined(linked, None, nothing, (_refusal(linked, donor, replayed, share),))
    op = np.append(donor.kernels["op"].fill_null(NONE).to_numpy(), NONE)[found]
    joined = pl.Series("donor_op", op)
    kernels = linked.kernels.with_columns(joined.set(joined == NONE, None))
    is_ambiguous = not with_grid and donor.captures > 1
    warnings = (*_differences(share, time_share), *([_AMBIGUOUS] if is_ambiguous else []))
    return Joined(replace(linked, kernels=kernels, donor=donor.trace), donor.method, aligned, warnings)


def join_within(linked: Linked) -> Joined:
    """Give the kernels of graph replays the ops of eager steps of the same trace, where there are some that agree.

    Nobody said that they do the same, so almost all kernels must line up, and what does not is no warning.
    """
    replayed = _replayed(linked.trace, linked.kernels)
    nothing = Joined(linked, None, np.zeros(linked.kernels.height, dtype=np.bool_))
    if not replayed.size:
        return nothing
    _, sizes = np.unique(linked.kernels["launch"].gather(replayed).to_numpy(), return_counts=True)
    if linked.kernels.height - replayed.size < GOOD_ALIGNED * sizes.max():
        return nothing
    joined = join(linked, Donor.of(linked))
    return replace(joined, warnings=()) if joined.aligned[replayed].mean() >= GOOD_ALIGNED else nothing


def _has_grids(kernels: pl.DataFrame) -> bool:
    """Whether most kernels have one: of ROCm's, those that a graph replays have none, nor do launches into it."""
    return kernels["grid_x"].null_count() < kernels.height / 2


def _refusal(linked: Linked, donor: Donor, replayed: Ints, share: float) -> TraceWarning:
    """Say why nothing was joined."""
    _, sizes = np.unique(linked.kernels["launch"].gather(replayed).to_numpy(), return_counts=True)
    names_none = donor.trace.launches["kernel"].is_null().all()
    if donor.captures and names_none and donor.kernels.height < MIN_ALIGNED * sizes.min():
        return TraceWarning(
            "capture-trace-unnamed",
            f"--capture-trace names {donor.kernels.height:,} kernels, fewer than a replay has: CUDA's launches into a"
            " graph name none, so the passes that warm up for the capture must be recorded too; nothing was joined",
        )
    return TraceWarning(
        "capture-trace-differs",
        f"{share:.1%} of the replayed kernels line up with those of --capture-trace, so it is of another model or"
        " batch size: nothing was joined",
    )


def _differences(share: float, time_share: float) -> Iterator[TraceWarning]:
    if min(share, time_share) < GOOD_ALIGNED:
        message = (
            f"{share:.1%} of the replayed kernels, {time_share:.1%} of their time, line up with those of"
            " --capture-trace; the others stay without an op, and if its batch size is another, shapes differ"
        )
        yield TraceWarning("capture-trace-differs", message)


def _captured(trace: Trace) -> pl.DataFrame:
    """Return the launches that name a kernel and have no GPU row: those into a graph."""
    launches = trace.launches.with_columns(pl.Series("op", find_op_of_launch(trace)))
    captured = launches.filter(pl.col("kernel").is_not_null()).join(trace.kernels, on="correlation", how="anti")
    op = pl.when(pl.col("op") != NONE).then("op").alias("op")
    return captured.sort("start_ns", maintain_order=True).select(pl.col("kernel").alias("name"), op)


def _replayed(trace: Trace, kernels: pl.DataFrame) -> Ints:
    """Return the rows of kernels that a graph launch started, by launch, device and stream, each in order of time."""
    is_graph = trace.launches["name"].cast(pl.String).str.contains(GRAPH_LAUNCH)
    rows = kernels.select("launch", "device", "stream").with_row_index("row")
    graph = rows.filter(pl.col("launch").is_in(is_graph.arg_true().cast(pl.Int64).implode()))
    return graph.sort("launch", "device", "stream", "row")["row"].cast(pl.Int64).to_numpy()


def _find(linked: Linked, donor: Donor, replayed: Ints, same: Sequence[str]) -> Ints:
    """Return for each kernel the row of the donor's that it lines up with, or `NONE`; equal replays are done once.

    Args:
        linked: the trace.
        donor: the donor.
        replayed: the kernels to find, by launch and stream.
        same: the columns in which two kernels must agree to be the same.
    """
    kernels = linked.kernels[replayed]
    codes, donor_codes = _codes(kernels, donor.kernels, same)
    there = _per_device(donor, donor_codes)
    streams = kernels.select("device", "stream").fill_null(NONE).to_numpy()
    launch = kernels["launch"].to_numpy()
    new_stream = np.any(np.diff(streams, axis=0, prepend=streams[:1] - 1) != 0, axis=1)
    new_replay = np.diff(launch, prepend=launch[0] - 1) != 0
    replays = np.append(np.flatnonzero(new_replay), replayed.size)
    found = np.full(linked.kernels.height, NONE, dtype=np.int64)
    known: dict[tuple[bytes, bytes], Ints] = {}
    for begin, end in zip(replays[:-1].tolist(), replays[1:].tolist(), strict=True):
        starts = np.flatnonzero(new_stream[begin:end] | new_replay[begin:end])
        key = codes[begin:end].tobytes(), starts.tobytes()
        if key not in known:
            in_time = np.argsort(replayed[begin:end])
            matches = [_match(codes[begin:end], starts, in_time, part) for part in there]
            known[key] = max(matches, key=lambda match: int((match != NONE).sum()), default=np.full(end - begin, NONE))
        found[replayed[begin:end]] = known[key]
    return found


class _There(NamedTuple):
    """The donor's kernels on one device, or those that were captured, in order."""

    rows: Ints
    codes: Ints
    stream: Ints
    runs: Runs


def _per_device(donor: Donor, codes: Ints) -> list[_There]:
    """Divide the donor's kernels: what runs on two devices interleaves by chance, and streams have equal numbers."""
    device, stream = donor.kernels.select("device", "stream").fill_null(NONE).to_numpy().T
    parts = [np.flatnonzero(device == number) for number in np.unique(device)]
    return [_There(rows, codes[rows], stream[rows], Runs(codes[rows])) for rows in parts]


def _match(codes: Ints, starts: Ints, in_time: Ints, donor: _There) -> Ints:
    """Return for each kernel of a replay the donor's row, or `NONE`.

    Args:
        codes: the replay's kernels, stream by stream.
        starts: where each stream begins.
        in_time: the order in which they ran.
        donor: the donor's kernels.
    """
    matches = np.full(codes.shape, NONE, dtype=np.int64)
    if codes.size > _MOST_KERNELS:
        return matches
    near = donor.runs.window(codes[in_time])
    streams = donor.stream[near]
    known = np.unique(streams)
    if starts.size * known.size > _MOST_PAIRS:
        return matches
    places = [np.flatnonzero(streams == stream) + near.start for stream in known]
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), codes.size], strict=True):
        best = 0
        for rows in places:
            here, there = align(codes[begin:end], donor.codes[rows])
            if here.size > best:
                best = here.size
                matches[begin:end] = NONE
                matches[begin + here] = donor.rows[rows[there]]
    return matches


def _codes(kernels: pl.DataFrame, donor: pl.DataFrame, same: Sequence[str]) -> tuple[Ints, Ints]:
    """Return numbers that are equal where these columns are."""
    both = pl.concat([part.select(same) for part in (kernels, donor)])
    kinds = both.unique(maintain_order=True).with_row_index("code")
    codes = both.join(kinds, on=same, how="left", nulls_equal=True, maintain_order="left")["code"]
    numbers = codes.cast(pl.Int64).to_numpy()
    return numbers[: kernels.height], numbers[kernels.height :]
