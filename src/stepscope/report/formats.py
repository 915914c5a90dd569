"""One document in the format that was asked for: JSON is the same for all, the rest each draws for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from rich.console import Console

Document = TypeVar("Document")


def draw_as(
    report_format: Format,
    document: Document,
    stream: TextIO,
    *,
    terminal: Callable[[Document, Console], None],
    markdown: Callable[[Document], Iterable[str]],
) -> None:
    """Write a document to a stream; `terminal` prints it on a console, `markdown` gives its lines."""
    if report_format is Format.JSON:
        write(document, stream)
    elif report_format is Format.MARKDOWN:
        stream.writelines(f"{line}\n" for line in markdown(document))
    else:
        with console_on(stream) as console:
            terminal(document, console)
