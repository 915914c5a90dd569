"""Folders of ranks: each rank is compared with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.decode_steps import Work, graphed

import stepscope
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.kineto import Kineto


def steps(us: float, rank: int | None) -> Kineto:
    trace = graphed([[Work("nvjet_a", us)]] * 8)
    if rank is not None:
        trace.header["distributedInfo"] = {"rank": rank, "world_size": 4}
    return trace


def folder(path: Path, files: Mapping[str, tuple[float, int | None]]) -> Path:
    path.mkdir()
    for name, (us, rank) in files.items():
        steps(us, rank).save(path / name)
    return path


def deltas(found: Any) -> dict[int, Any]:
    return {row.trace: pytest.approx(row.delta_us.expected) for row in found.steps}


def test_ranks_are_paired_whatever_the_files_are_called(tmp_path: Path) -> None:
    before = folder(tmp_path / "b", {"x.json": (100, 1), "y.json": (200, 0)})
    after = folder(tmp_path / "a", {"m.json": (205, 0), "n.json": (90, 1)})
    found = stepscope.compare(before, after)
    assert deltas(found) == {0: 5, 1: -10}
    assert [trace.rank for trace in found.before.traces] == [trace.rank for trace in found.after.traces] == [0, 1]
    assert found.delta_us == found.steps[0].delta_us
    assert {row.trace: pytest.approx(row.delta_us) for row in found.by_kernel} == {0: 5, 1: -10}
    assert found.notes == []


def test_without_ranks_files_are_paired_in_order_of_their_names(tmp_path: Path) -> None:
    before = folder(tmp_path / "b", {"TP-0.json": (100, None), "TP-1.json": (200, None)})
    after = folder(tmp_path / "a", {"TP-0.json": (101, None), "TP-1.json": (202, None)})
    (tmp_path / "a" / "server_info.json").write_text("none here")
    assert deltas(stepscope.compare(before, after)) == {0: 1, 1: 2}


def test_other_ranks_or_numbers_are_refused(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {"a.json": (100, 0), "b.json": (100, 1)})
    other = folder(tmp_path / "other", {"a.json": (100, 0), "b.json": (100, 2)})
    with pytest.raises(UsageError, match="different ranks: only one of them has 1, 2"):
        stepscope.compare(one, other)
    three = folder(tmp_path / "three", {f"{name}.json": (100, None) for name in "abc"})
    with pytest.raises(UsageError, match="different numbers of traces, 2 and 3"):
        stepscope.compare(one, three)


def test_a_slow_rank_fails_and_is_named(tmp_path: Path, run: Any) -> None:
    before = folder(tmp_path / "b", {"r0.json": (100, 0), "r1.json": (100, 1)})
    after = folder(tmp_path / "a", {"r0.json": (100, 0), "r1.json": (150, 1)})
    code, out, _ = run("compare", before, after, "--fail-if-slower", "3%", "--no-cache")
    assert code == 1
    assert "decode steps, batch 1 in r0.json" in out
    assert "decode steps, batch 1 in r1.json" in out
