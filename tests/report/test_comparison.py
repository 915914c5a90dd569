"""A comparison drawn: within its width, with names from a trace harmless, and every figure the document's."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt
from tests.decode_steps import Work, graphed
from tests.kernel_names import TO_BF16
from tests.samples_of_trouble import HOSTILE, pool_cast

from stepscope import compare
from stepscope.report import Format
from stepscope.report.comparison import draw

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import Comparison


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)


def drawn(found: Comparison, report_format: Format) -> str:
    stream = io.StringIO()
    draw(found, report_format, stream)
    return stream.getvalue()


def story(folder: Path) -> Comparison:
    layer, cast = Work("flash_mla_kernel", 400.0), Work(TO_BF16, 820.0, grid=(557496, 1, 1))
    before = graphed([[cast, layer] * 78] * 7).save(folder / "before.json")
    after = graphed([[layer] * 78 + [Work("nvjet_slow", 43_000.0)]] * 7).save(folder / "after.json")
    return compare(before, after, model="glm-5", tp=8)


def hostile(folder: Path) -> Comparison:
    before = pool_cast(name=HOSTILE).save(folder / "before.json")
    after = pool_cast(name=f"{HOSTILE}2", with_cast=False).save(folder / "after.json")
    return compare(before, after)


def test_a_miss_is_shown_as_one_signed_and_in_ms(tmp_path: Path) -> None:
    text = drawn(story(tmp_path), Format.TERMINAL)
    assert "MISS: the step is 43.0" in text
    assert "ms more than expected" in text
    (step,) = [
        line for line in text.splitlines() if line.lstrip().startswith("step ") and " to " in line and "+" in line
    ]
    assert "74.22 ms" in step
    assert "31.2" in step
    assert "+43.0" in step


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_report_stays_within_its_width(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for made in (story, hostile):
        folder = tmp_path / made.__name__
        folder.mkdir()
        assert max(map(len, drawn(made(folder), Format.TERMINAL).splitlines())) <= width


def test_names_from_a_trace_are_harmless(tmp_path: Path) -> None:
    found = hostile(tmp_path)
    for report_format in Format:
        text = drawn(found, report_format)
        assert not {c for c in text if c != "\n" and not c.isprintable()} or report_format is Format.JSON
        assert "\x1b" not in text
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(drawn(found, Format.MARKDOWN))
    inline = [child for token in tokens for child in token.children or ()]
    assert not {"html_inline", "link_open", "image", "code_inline"} & {token.type for token in inline}
    assert not [token for token in tokens if token.type == "html_block"]


def test_the_formats_agree(tmp_path: Path) -> None:
    found = story(tmp_path)
    terminal, markdown, document = (drawn(found, each) for each in (Format.TERMINAL, Format.MARKDOWN, Format.JSON))
    assert json.loads(document)["delta_us"]["expected"] == pytest.approx(found.delta_us.expected)
    for text in (terminal, markdown):
        assert "Where did the 20.96 ms go?" in text  # 78 × 820 µs of casts less 43 ms
        assert "nvjet" in text
        assert "kv-pool-cast" in text.replace("\\", "")
