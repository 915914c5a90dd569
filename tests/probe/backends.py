"""Backend-like files that tests write, and what following them says."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from stepscope.probe.source import verdicts
from stepscope.probe.source.files import ProcessFiles
from stepscope.probe.source.program import Program
from stepscope.probe.source.records import Records
from stepscope.probe.source.walk import Walk

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import Answer, Site


class Followed:
    """A class of a package `engine`, written to a folder and followed."""

    def __init__(self, folder: Path, cls: str, **modules: str) -> None:
        package = folder / "engine"
        package.mkdir()
        (package / "__init__.py").write_text("")
        for name, text in modules.items():
            (package / f"{name}.py").write_text(textwrap.dedent(text))
        program = Program(ProcessFiles(), {"engine": str(package)})
        module = program.module(f"engine.{next(iter(modules))}")
        assert module is not None
        self.records = Records()
        Walk(program, self.records).follow_class(module.classes[cls])

    def pool_cast(self) -> tuple[Answer, list[Site]]:
        return verdicts.pool_cast(self.records)

    def plan_dtype(self) -> tuple[Answer | None, list[Site]]:
        return verdicts.plan_dtype(self.records)


def line_of(text: str, part: str) -> int:
    """Return the line of a written file that holds some text, as the file has it."""
    lines = [number for number, line in enumerate(textwrap.dedent(text).splitlines(), 1) if part in line]
    assert len(lines) == 1
    return lines[0]
