"""Kernels whose durations are nonsense: at least 8 later ones of the stream begun, and 100 µs of overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto

from stepscope import load

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.trace import Trace


def row(*, first_us: float, later: int, every: float, stream: int = 7, device: int = 0) -> Kineto:
    """A kernel at 10 µs and so many later ones, the first of them at 20 µs, each of 5 µs."""
    trace = Kineto()
    trace.kernel("first", 10, first_us, stream=stream, device=device)
    for number in range(later):
        trace.kernel(f"later{number}", 20 + number * every, 5, stream=stream, device=device)
    return trace


def loaded(trace: Kineto, folder: Path) -> Trace:
    return load(trace.save(folder / "trace.json"))


def overruns(trace: Trace) -> int:
    found = [warning for warning in trace.warnings if warning.code == "overrunning-durations"]
    assert all(warning.spoils_totals for warning in found)
    return sum(warning.count for warning in found)


@pytest.mark.parametrize(
    ("first_us", "later", "every", "is_overrun"),
    [
        # 8 later ones begin at 20, 40 … 160: the first must end after 160 for all of them to have begun
        (151, 8, 20, True),  # ends at 161: 8 begun, overlaps the next by 141 µs
        (150.001, 8, 20, True),  # the 8th has begun 1 ns ago
        (150, 8, 20, False),  # ends at 160 as the 8th begins: only 7 have begun
        (10_000, 7, 20, False),  # never 8
        (10_000, 8, 20, True),
        (10_000, 8, 1_000, True),  # they begin at 20, 1,020 … 7,020, all before 10,010
        (7_000, 8, 1_000, False),  # ends at 7,010: the 8th begins at 7,020
        # 100 µs of overlap with the next, which begins at 20
        (110, 20, 6, True),  # ends at 120
        (109.999, 20, 6, False),  # 1 ns less
        (13, 20, 1, False),  # programmatic launches: ends at 23
        (10, 20, 6, False),  # ends as the next begins
        (0, 20, 6, False),
    ],
)
def test_the_edges(first_us: float, later: int, every: float, is_overrun: bool, tmp_path: Path) -> None:  # noqa: FBT001
    trace = loaded(row(first_us=first_us, later=later, every=every), tmp_path)
    assert overruns(trace) == int(is_overrun)
    assert trace.kernels.height == later + 1 - int(is_overrun)
    assert ("first" in trace.kernels["name"].to_list()) is not is_overrun
    assert trace.event_count == later + 1


def test_only_kernels_of_the_same_stream_and_device_count(tmp_path: Path) -> None:
    trace = Kineto()
    trace.kernel("long", 10, 10_000, stream=7, device=0)
    for number in range(50):
        trace.kernel("other stream", 20 + number * 20, 5, stream=9, device=0)
        trace.kernel("other device", 20 + number * 20, 5, stream=7, device=1)
    found = loaded(trace, tmp_path)
    assert (overruns(found), found.kernels.height) == (0, 101)


def test_each_stream_is_looked_at_on_its_own(tmp_path: Path) -> None:
    trace = Kineto()
    for stream, device in ((7, 0), (9, 0), (7, 1)):
        part = row(first_us=10_000, later=20, every=20, stream=stream, device=device)
        trace.events += part.events
    found = loaded(trace, tmp_path)
    assert (overruns(found), found.kernels.height) == (3, 60)
    assert set(found.kernels["name"].to_list()) == {f"later{number}" for number in range(20)}


def test_one_in_the_middle_is_found_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    trace = Kineto()
    for number in range(40):
        trace.kernel(f"k{number}", 10 + number * 10, 100_000 if number == 20 else 9)
    trace.events.reverse()
    found = loaded(trace, tmp_path)
    assert overruns(found) == 1
    assert found.kernels["name"].to_list() == [f"k{number}" for number in range(40) if number != 20]


def test_two_that_overrun_do_not_hide_each_other(tmp_path: Path) -> None:
    trace = row(first_us=10_000, later=20, every=20)
    trace.kernel("second", 11, 10_000)
    found = loaded(trace, tmp_path)
    assert (overruns(found), found.kernels.height) == (2, 20)


def test_the_last_ones_cannot_be_judged_and_stay(tmp_path: Path) -> None:
    trace = row(first_us=5, later=20, every=20)
    trace.kernel("last", 1_000, 86_000_000)
    found = loaded(trace, tmp_path)
    assert (overruns(found), found.kernels.height) == (0, 22)


def test_rows_without_a_stream_are_one_stream(tmp_path: Path) -> None:
    trace = row(first_us=10_000, later=20, every=20)
    for event in trace.events:
        del event["args"]["stream"]
    assert overruns(loaded(trace, tmp_path)) == 1


def test_a_trace_without_kernels_has_none(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::add", 1, 100_000)
    for number in range(30):
        trace.op("aten::add", 2 + number, 1)
    found = loaded(trace, tmp_path)
    assert (overruns(found), found.ops.height) == (0, 31)
