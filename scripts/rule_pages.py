"""Write docs/rules: a page for each rule, of its own explanation and of what the report says on an example of it.

Run in the repository: python scripts/rule_pages.py. The examples are the tests' (tests/examples/<rule>.py).
"""

from __future__ import annotations

import sys
from contextlib import chdir
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]  # the built traces are the tests'

from stepscope import diagnose  # noqa: E402
from stepscope.pipeline.detect.registry import all_rules  # noqa: E402
from stepscope.report import Format, draw  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.pipeline.detect.rule import Rule

PAGES = REPOSITORY / "docs/rules"
INDEX = "README.md"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    rules = sorted(all_rules(), key=lambda rule: rule.id)
    for rule in rules:
        yield f"{rule.id}.md", _page(rule)
    rows = (f"| [{r.id}]({r.id}.md) | {r.title} | {', '.join(r.phases)} | {'; '.join(r.needs)} |\n" for r in rules)
    yield (
        INDEX,
        f"# The rules\n\n{_WRITTEN}\n| rule | what is wrong | phases | needs |\n|---|---|---|---|\n{''.join(rows)}",
    )


_WRITTEN = """\
`python scripts/rule_pages.py` wrote these pages: what `stepscope explain RULE` says, and an example.
"""


def _page(rule: Rule) -> str:
    needs, phases = "; ".join(rule.needs), ", ".join(rule.phases)
    build = import_module(f"tests.examples.{rule.id.replace('-', '_')}").FIRING[0]
    example = build.__name__.replace("_", " ")
    with TemporaryDirectory() as folder, chdir(folder):
        built = build()
        ranks = built if isinstance(built, list) else [built]
        names = ["trace.json"] if len(ranks) == 1 else [f"rank{number}.json" for number in range(len(ranks))]
        traces = [trace.save(Path(name)) for trace, name in zip(ranks, names, strict=True)]
        report = StringIO()
        draw(diagnose(traces, model="glm-5", tp=8), Format.TERMINAL, report)
    said = "".join(f"{line.rstrip()}\n" for line in report.getvalue().splitlines())
    return (
        f"# {rule.id}\n\n{rule.explanation.strip()}\n\n## Judged\nIn phases {phases}. Needs {needs}.\n\n"
        f"## Example\nA built trace: {example}.\n\n"
        f"```\n$ stepscope diagnose {' '.join(names)} --model glm-5 --tp 8\n{said}```\n"
    )


def main() -> None:
    """Write the pages."""
    PAGES.mkdir(exist_ok=True)
    for name, text in pages():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
