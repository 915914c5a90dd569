"""Renderers: within the width they are given, and names from a trace come out harmless."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from functools import cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec import structs
from tests.kineto import Kineto
from tests.samples_of_trouble import HOSTILE, pool_cast

from stepscope import diagnose
from stepscope.document import Warning_
from stepscope.report import Format, draw, terminal
from stepscope.report.markdown import escaped
from stepscope.report.sentences import finding_rows
from stepscope.report.text import printable, shown

if TYPE_CHECKING:
    from stepscope.document import Diagnosis


@cache
def diagnosis_of(name: str) -> Diagnosis:
    """Diagnose the trace whose names all hold `name`."""
    with TemporaryDirectory() as folder:
        path = pool_cast(name=name).save(Path(folder) / f"trace{name.replace('/', '')[:60]}.json")
        return diagnose([path], model="glm-5", tp=8, context=1024)


def drawn(diagnosis: Diagnosis, report_format: Format) -> str:
    stream = io.StringIO()
    draw(diagnosis, report_format, stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream in memory is no terminal: neither its width nor its colours come from where the tests run."""
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("name", ["", HOSTILE, "x" * 500, "long name " * 40], ids=["plain", "hostile", "long", "words"])
def test_the_terminals_report_fits_80_columns(name: str) -> None:
    lines = drawn(diagnosis_of(name), Format.TERMINAL).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 20


@pytest.mark.parametrize("report_format", list(Format))
def test_what_was_assumed_of_the_model_is_said(report_format: Format, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "intermediate_size": 96}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "new", "vocab_size": 128, **sizes}), "utf-8")
    diagnosis = diagnose([pool_cast().save(tmp_path / "trace.json")], model=str(config), tp=1)
    assert diagnosis.model is not None
    assert diagnosis.model.source == str(config)
    assert "new is not a known architecture" in drawn(diagnosis, report_format)


@pytest.mark.parametrize("report_format", list(Format))
@pytest.mark.parametrize("name", ["", HOSTILE], ids=["plain", "hostile"])
def test_no_report_holds_a_control_character(name: str, report_format: Format) -> None:
    text = drawn(diagnosis_of(name), report_format)
    if report_format is Format.JSON:  # JSON escapes what is below a blank, and the rest is data
        text = "".join(character for character in text if character < "\x80")
    assert not {character for character in text if unicodedata.category(character) in {"Cc", "Cf"}} - {"\n"}


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    text = drawn(diagnosis_of("[red]x[/red]:smile:"), Format.TERMINAL)
    assert "NVIDIA H200[red]x[/red]:smile:" in " ".join(text.split())


def test_colour_only_on_a_terminal() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    diagnosis = diagnosis_of("")
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        terminal.draw(diagnosis, screen)
    assert "\x1b[" in screen.getvalue()
    assert "\x1b" not in drawn(diagnosis, Format.TERMINAL)


def test_the_terminals_report_names_what_matters() -> None:
    text = " ".join(drawn(diagnosis_of(""), Format.TERMINAL).split())
    for part in ("kv-pool-cast", "CRITICAL", "NVIDIA H200", "495,552 slots", "forward_decode", "848.5 µs"):
        assert part in text


@pytest.mark.parametrize("report_format", [Format.TERMINAL, Format.MARKDOWN])
def test_no_sentence_is_cut_off(report_format: Format) -> None:
    diagnosis = diagnosis_of("")
    text = " ".join(drawn(diagnosis, report_format).replace("\\", "").split())
    finding = diagnosis.findings[0]
    assert finding.what_if is not None
    sentences = [finding.title, finding.control, finding.what_if.assumption, *(fix.what for fix in finding.fix)]
    sentences += [
        row.reason if row.undecided or (row.share_of_step or 0) >= 0.01 else row.hypothesis
        for row in diagnosis.ruled_out
    ]
    sentences += [row.missing for row in diagnosis.could_not_check]
    missing = [sentence for sentence in sentences if " ".join(sentence.split()) not in text]
    assert not missing


@pytest.mark.parametrize(
    ("calls", "us", "said"),
    [
        (78.0, 128.2, "10.00 ms a step, 50% of it: 78 calls × 128.2 µs"),
        (0.25, 40_000.0, "10.00 ms a step, 50% of it: 0.25 calls × 40.00 ms"),
        (12.0, 2_000.0, "10.00 ms a step, 50% of it; 12 calls, the largest of 2.00 ms"),
        (1.0, 20_000.0, "10.00 ms a step, 50% of it; 1 call of 20.00 ms"),
        (1.0, 7.2, "10.00 ms a step, 50% of it"),  # a copy within a gap
    ],
)
def test_calls_times_their_duration_are_what_a_finding_costs_or_it_is_said_otherwise(
    calls: float, us: float, said: str
) -> None:
    diagnosis = diagnosis_of("")
    finding = structs.replace(
        diagnosis.findings[0],
        time_us_per_step=10_000.0,
        share_of_step=0.5,
        evidence=structs.replace(diagnosis.findings[0].evidence, calls_per_step=calls, us_per_call=us),
    )
    assert dict(finding_rows(diagnosis, finding))["costs"] == said


@pytest.mark.parametrize("report_format", [Format.TERMINAL, Format.MARKDOWN])
def test_the_step_without_the_profiler_stands_beside_the_recorded_one(report_format: Format) -> None:
    diagnosis = diagnosis_of("")
    (step,), (finding, *_) = diagnosis.steps, diagnosis.findings
    assert finding.what_if is not None
    told = structs.replace(
        diagnosis,
        steps=[structs.replace(step, unprofiled_duration_us=70_120.0)],
        findings=[structs.replace(finding, what_if=structs.replace(finding.what_if, unprofiled_step_us=4_560.0))],
    )
    text = " ".join(drawn(told, report_format).replace("\\", "").split())
    assert " a step, about 70.12 ms without the profiler; GPU span " in text
    assert "; without the profiler about 70.12 ms → 4.56 ms. Assumes: " in text
    assert step.unprofiled_duration_us is None
    assert "without the profiler" not in " ".join(drawn(diagnosis, report_format).split())


@pytest.mark.parametrize("report_format", [Format.TERMINAL, Format.MARKDOWN])
def test_notes_stand_below_the_warnings_and_say_what_told_a_graphs_kernels(report_format: Format) -> None:
    diagnosis = diagnosis_of("")
    trace = structs.replace(
        diagnosis.traces[0],
        attribution=structs.replace(diagnosis.traces[0].attribution, joined=0.857, join_method="eager-twin"),
        warnings=[
            Warning_(code="a", message="stacks, if wanted", count=1, is_note=True),
            Warning_(code="b", message="beware", count=3, is_note=False),
        ],
    )
    text = re.sub(r"[^\w%]+", " ", drawn(structs.replace(diagnosis, traces=[trace]), report_format))
    assert (
        "warning beware 3 note stacks if wanted note kernels of a graph 85 7% of the kernel time line up with" in text
    )


@pytest.mark.parametrize("report_format", [Format.TERMINAL, Format.MARKDOWN])
def test_where_nothing_could_be_judged_the_reason_stands_once(report_format: Format, tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::mm", 1, 5)
    text = " ".join(drawn(diagnose([trace.save(tmp_path / "cpu.json")]), report_format).split())
    assert "Nothing could be judged" in text
    assert "No findings" not in text
    assert text.count("no GPU events.") == 1
    for rule in ("kv-pool-cast", "redundant-cast", "launch-bound"):
        assert text.count(rule) == 1


def test_json_is_one_document_and_nothing_else() -> None:
    text = drawn(diagnosis_of(HOSTILE), Format.JSON)
    document = json.loads(text)
    assert document["schema_version"] == 1
    assert document["traces"][0]["device"] == f"NVIDIA H200{HOSTILE}", "JSON is data: names stay as recorded"
    assert text.endswith("}\n")


def test_markdown_shows_names_as_they_are() -> None:
    """Rendered with HTML allowed, as a forge does: no element comes from a name, and its text is whole."""
    text = drawn(diagnosis_of(HOSTILE), Format.MARKDOWN)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(text)
    elements = {tag.lower() for tag in re.findall(r"</?([a-zA-Z][\w-]*)", html)}
    assert elements <= {"h1", "h2", "h3", "ul", "ol", "li", "p", "strong", "code"} | {
        *("table", "thead", "tbody", "tr", "th", "td")
    }
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "e.vil" in html
    assert "`c` *b* _i_ | cell | # head" in html


@pytest.mark.parametrize("name", ["", HOSTILE], ids=["plain", "hostile"])
def test_every_row_of_a_markdown_table_has_its_columns(name: str) -> None:
    lines = drawn(diagnosis_of(name), Format.MARKDOWN).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert rows
    width = 0
    for previous, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line)) - 1
            width = width if previous.startswith("|") else cells
            assert cells == width


@given(st.text())
def test_markdown_shows_any_text_literally(text: str) -> None:
    line = printable(text).strip()
    if not line:
        return
    html = MarkdownIt("commonmark", {"html": True}).render(f"- **x**: {escaped(line)}")
    shown = re.fullmatch(r"<ul>\n<li><strong>x</strong>: (.*)</li>\n</ul>\n", html, re.DOTALL)
    assert shown is not None
    assert unescape(shown[1]) == line
    assert "<" not in shown[1]


@given(st.text(st.characters()))
def test_printable_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert all(unicodedata.category(character)[0] != "C" for character in shown)
    assert "\u2028" not in shown
    assert "\n" not in shown


@given(st.text(st.characters(categories=("L", "N", "P", "S"))))
def test_printable_leaves_ordinary_text_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_of_a_name_of_a_million_characters_both_ends_are_shown() -> None:
    text = shown("begin" + "x" * 1_000_000 + "\x1b.py")
    assert len(text) < 5000
    assert (text[:6], text[-8:]) == ("beginx", "x\\x1b.py")
    assert shown("x" * 4000) == "x" * 4000


LAB = Path(__file__).parents[1] / "traces"


def rows_of(case: str) -> dict[str, str]:
    (first, *_) = (diagnosis := diagnose([LAB / case / "graph.json.gz"])).findings
    return dict(finding_rows(diagnosis, first))


def test_of_several_kinds_of_calls_the_largest_are_told() -> None:
    largest = rows_of("unfused-norms-1x1024-pool495552")["largest"].split("; ")
    assert [part.split(" µs ")[0] for part in largest[:-1]] == ["115.8", "89.7", "75.9"]
    assert re.fullmatch(r"and \d+ more", largest[-1])


def test_a_wait_is_told_by_its_call() -> None:
    rows = rows_of("hidden-sync-1x1024-pool495552")
    assert rows["call"] == "cudaStreamSynchronize in aten::item"
    assert "op" not in rows
