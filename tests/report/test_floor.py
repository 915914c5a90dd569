"""The floor as people read it: within 80 columns, without colour, in Markdown that holds its tables."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt
from tests.decode_steps import Work, graphed

from stepscope import floor
from stepscope.report import Format
from stepscope.report.floor import draw
from stepscope.report.floor.bars import WIDTH, Bar, bars

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import Floor

HOSTILE = "\x1b[31m|`*<b>\u202e"


@pytest.fixture(name="found", scope="module")
def found_fixture(tmp_path_factory: pytest.TempPathFactory) -> Floor:
    """The fullest document: traces of three batch sizes, one of them with a name that would break out."""
    folder: Path = tmp_path_factory.mktemp("traces")
    paths = []
    for batch in (1, 4, 16):
        work = [Work("nvjet_a", 50000.0), Work("float8_copy_kernel", 100.0 * batch), Work("frobnicate", 5.0)]
        trace = graphed([work] * 5, annotation=f"step[DECODE bs={batch}]")
        paths.append(trace.save(folder / f"{HOSTILE.replace('/', '')}{batch}.json"))
    return floor(model="glm-5", gpu="rtx-pro-6000", tp=8, batch=4, traces=paths)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)


def drawn(found: Floor, report_format: Format) -> str:
    stream = io.StringIO()
    draw(found, report_format, stream)
    return stream.getvalue()


def test_the_terminals_report_fits_80_columns(found: Floor) -> None:
    lines = drawn(found, Format.TERMINAL).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.strip().startswith("measured") and line.endswith("+") for line in lines)


def test_a_narrow_terminal_loses_no_digit(found: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = drawn(found, Format.TERMINAL)
    assert max(map(len, text.splitlines())) <= 40
    assert "\u2026" not in text


@pytest.mark.parametrize("report_format", [Format.TERMINAL, Format.MARKDOWN])
def test_no_report_holds_a_control_character(found: Floor, report_format: Format) -> None:
    assert not set(drawn(found, report_format)) & {"\x1b", "\u202e"}


def test_both_formats_tell_every_component_and_assumption(found: Floor) -> None:
    terminal, markdown = drawn(found, Format.TERMINAL), drawn(found, Format.MARKDOWN)
    for part in found.components:
        assert f"  {part.name} " in terminal
        assert f"| {part.name} |" in markdown
    assert markdown.count("\n- ") == len(found.assumptions)


def test_markdown_has_its_tables_and_plots(found: Floor) -> None:
    tokens = MarkdownIt().enable("table").parse(drawn(found, Format.MARKDOWN))
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 5  # components, parts, costs, shares, growth
    assert kinds.count("fence") == 3  # waterfall, by batch, by context
    assert not [token for token in tokens if token.type == "html_block"]


def test_json_is_plain(found: Floor) -> None:
    assert json.loads(drawn(found, Format.JSON))["case"]["batch"] == 4
    assert "\x1b" not in drawn(found, Format.JSON)


def test_a_step_below_the_floor_is_not_the_same_work() -> None:
    text = drawn(floor(model="glm-5", gpu="h200", tp=8, measured_us=1000), Format.TERMINAL)
    assert "below the floor: it did other work than this" in text


def test_two_points_say_that_no_error_is_known(found: Floor, tmp_path: Path) -> None:
    paths = []
    for batch in (1, 4):
        trace = graphed([[Work("nvjet_a", 14000.0 + batch)]] * 5, annotation=f"step[DECODE bs={batch}]")
        paths.append(trace.save(tmp_path / f"{batch}.json"))
    two = floor(model="glm-5", gpu="h200", tp=8, traces=paths)
    assert "no error can be told" in drawn(two, Format.TERMINAL)
    assert "no error can be told" not in drawn(found, Format.TERMINAL)


def test_bars_begin_where_the_last_ended_and_share_a_scale() -> None:
    lines = bars([Bar("a", 10, "10"), Bar("b", 30, "30", start=10, beyond=15), Bar("c", 0.01, "0", start=39.99)])
    assert lines == [
        "a  10  ##########",
        "b  30            ###############+++++++++++++++",
        f"c   0  {' ' * (WIDTH - 1)}.",
    ]


def test_nothing_has_no_bar() -> None:
    assert bars([Bar("a", 0, "0")]) == ["a  0"]
