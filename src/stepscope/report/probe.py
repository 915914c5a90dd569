"""The environment of a server, as `stepscope probe` prints it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope import units
from stepscope.report import Format
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.markdown import escaped, table
from stepscope.report.text import printable, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Answer, MlaBackend, Probe, Site

_WORDS = {True: "yes", False: "no", None: "not told"}
_OVERVIEW = ("backend", "reads FP8 KV", "casts the pool", "query type to plan()", "head sizes")
"""Reads FP8 KV with queries of 16 bits; casts the whole pool; gives `plan()` the queries' type for the pool."""
_PACKAGES = ("package", "version", "imported from")


def draw(probe: Probe, report_format: Format, stream: TextIO) -> None:
    """Write what was found to a stream."""
    if report_format is Format.JSON:
        write(probe, stream)
    elif report_format is Format.MARKDOWN:
        stream.writelines(f"{line}\n" for line in _markdown(probe))
    else:
        _draw(probe, stream)


def _draw(probe: Probe, stream: TextIO) -> None:
    with console_on(stream) as console:
        console.print(Text(printable(_title(probe))), style="bold")
        console.print(_labelled(_facts(probe)))
        console.print()
        console.print(_table(_PACKAGES, _packages(probe)))
        if probe.backends:
            console.print()
            console.print(_table(_OVERVIEW, _overview(probe)))
        for backend in probe.backends:
            console.print()
            console.print(Text(printable(_name(backend))), style="bold")
            console.print(_labelled(_backend(probe, backend)))
        if probe.notes:
            console.print()
            console.print(_labelled(("note", note) for note in probe.notes))


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in header:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    return drawn


def _labelled(rows: Iterator[tuple[str, str]]) -> Padding:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for label, text in rows:
        drawn.add_row(label, Text(shown(text)))
    return Padding(drawn, (0, 0, 0, 2))


def _markdown(probe: Probe) -> Iterator[str]:
    yield from (f"# {escaped(_title(probe))}", "")
    yield from (f"- {label}: {escaped(text)}" for label, text in _facts(probe))
    yield ""
    yield from table(_PACKAGES, _packages(probe))
    if probe.backends:
        yield ""
        yield from table(_OVERVIEW, _overview(probe))
    for backend in probe.backends:
        yield from ("", f"## {escaped(_name(backend))}", "")
        for label, text in _backend(probe, backend):
            yield f"- {label}: {escaped(text)}" if label else f"  - {escaped(text)}"
    if probe.notes:
        yield ""
        yield from (f"- note: {escaped(note)}" for note in probe.notes)


def _title(probe: Probe) -> str:
    process = "" if probe.server.pid is None else f" (process {probe.server.pid})"
    return f"{probe.server.asked}{process}"


def _facts(probe: Probe) -> Iterator[tuple[str, str]]:
    server, interpreter = probe.server, probe.interpreter
    yield "python", f"{server.python}, {interpreter.version} (found by: {server.python_found_by})"
    yield "environment", interpreter.prefix
    if server.root is not None:
        yield "files", f"in a file system of its own, {server.root} from here"
    if server.cwd is not None:
        yield "folder", server.cwd
    if server.arguments:
        yield "started with", " ".join(f"--{name} {value}" for name, value in server.arguments.items())
    built = [f"CUDA {interpreter.torch_cuda}"] if interpreter.torch_cuda else []
    built += [f"HIP {interpreter.torch_hip}"] if interpreter.torch_hip else []
    if built:
        yield "torch is for", ", ".join(built)
    if interpreter.driver_cuda:
        yield "driver", f"CUDA {interpreter.driver_cuda} at most"
    for gpu in probe.gpus:
        memory = "" if gpu.memory_bytes is None else f", {units.size(gpu.memory_bytes)}"
        yield "GPU", f"{gpu.name}, compute capability {gpu.compute_capability}{memory}"
    if probe.model is not None:
        model = probe.model
        sizes = f"nope {model.qk_nope_head_dim}, rope {model.qk_rope_head_dim}, v {model.v_head_dim}"
        yield "model", f"{model.model}: heads of {sizes}, latent {model.kv_lora_rank}"


def _packages(probe: Probe) -> Iterator[tuple[str, ...]]:
    for package in probe.packages:
        version = package.version or package.source_version or "not told"
        if package.version and package.source_version and package.version != package.source_version:
            version = f"{package.version}, its source says {package.source_version}"
        yield package.name, version, package.path or ""


def _overview(probe: Probe) -> Iterator[tuple[str, ...]]:
    for backend in probe.backends:
        phases = sorted({phase for site in backend.pool_cast_sites if site.is_certain for phase in site.phases})
        cast = ", ".join(phases) if backend.pool_cast.answer and phases else _WORDS[backend.pool_cast.answer]
        plan = "" if backend.plan_dtype is None else _WORDS[backend.plan_dtype.answer]
        heads = "" if backend.head_sizes is None else _WORDS[backend.head_sizes.answer]
        yield _name(backend), _WORDS[backend.fp8_kv.answer], cast, plan, heads


def _name(backend: MlaBackend) -> str:
    return f"{backend.engine} {backend.name}{' (chosen)' if backend.is_chosen else ''}"


def _backend(probe: Probe, backend: MlaBackend) -> Iterator[tuple[str, str]]:
    yield "FP8 KV", _answer(probe, backend.fp8_kv)
    yield "pool cast", f"{_WORDS[backend.pool_cast.answer]}: {backend.pool_cast.reason}"
    yield from (("", _site(probe, site)) for site in backend.pool_cast_sites)
    if backend.plan_dtype is not None:
        yield "plan()", backend.plan_dtype.reason
        yield from (("", _site(probe, site)) for site in backend.plan_sites)
    if backend.head_sizes is not None:
        yield "heads", _answer(probe, backend.head_sizes)


def _answer(probe: Probe, answer: Answer) -> str:
    how = ", ".join(filter(None, (answer.determined_by, answer.at and _short(probe, answer.at))))
    return f"{_WORDS[answer.answer]}: {answer.reason}{f' ({how})' if how else ''}"


def _site(probe: Probe, site: Site) -> str:
    lines = str(site.line) if site.end_line == site.line else f"{site.line}–{site.end_line}"
    conditions = f", if {' and '.join(site.conditions)}" if site.conditions else ""
    return f"{_short(probe, site.file)}:{lines} {site.function}: {site.given}{conditions}"


def _short(probe: Probe, path: str) -> str:
    """Return a file's path from its package on: where that is, the table of packages says."""
    folders = [str(PurePosixPath(package.path).parent) for package in probe.packages if package.path]
    folder = next((folder for folder in folders if path.startswith(f"{folder}/")), None)
    return path if folder is None else path.removeprefix(f"{folder}/")
