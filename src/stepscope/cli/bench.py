"""`stepscope bench mla`: the attention kernel beside its peers, on the GPU at hand."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from cyclopts import App, Parameter

from stepscope.errors import PartNotInstalledError

bench = App(name="bench", help="Benchmarks of what stepscope ships, on the GPU at hand.", version_flags=[])
mla = App(name="mla", help="The FP8 MLA decode kernel beside FlashInfer and FlashMLA.", help_flags=[], version_flags=[])
bench.command(mla)


@mla.default
def bench_mla(*options: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Measure the kernel and its peers; `--help` lists the options.

    Raises:
        PartNotInstalledError: torch or Triton is not installed.
    """
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise PartNotInstalledError(f"bench mla needs {' and '.join(missing)}: pip install 'stepscope[gpu]'")
    from stepscope.paged_mla.bench.__main__ import main  # noqa: PLC0415 -- imports torch

    return main(list(options))
