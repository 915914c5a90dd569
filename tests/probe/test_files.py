"""Files below a process's root: links stay inside it, and what is no source is not read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.probe.source import files
from stepscope.probe.source.files import ProcessFiles

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_absolute_links_lead_inside_the_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text("inside = 1\n")
    (tmp_path / "venv").symlink_to("/real")
    (tmp_path / "up").symlink_to("../../../../etc")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    below = ProcessFiles(tmp_path)
    assert below.read_text("/venv/a.py") == "inside = 1\n"
    assert below.real("/venv/a.py") == "/real/a.py"
    assert below.here("/up/passwd") == tmp_path / "etc" / "passwd"
    assert below.here("/../../x") == tmp_path / "x"
    assert below.read_text("/passwd") is None


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert ProcessFiles(tmp_path).read_text("/one") is None


def test_what_is_no_source_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "long.py").write_text("#" * 101)
    (tmp_path / "wrong.py").write_text("def :\n")
    (tmp_path / "nul.py").write_bytes(b"\0")
    (tmp_path / "deep.py").write_text("(" * 99)
    here = ProcessFiles()
    for name in ("pipe.py", "long.py", "wrong.py", "nul.py", "deep.py", "none.py", "."):
        assert here.source(f"{tmp_path}/{name}") is None
    assert here.names(f"{tmp_path}/none") == []
