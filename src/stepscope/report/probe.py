"""The environment of a server, as `stepscope probe` prints it."""

from __future__ import annotations

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

_WORDS = {True: "yes", False: "no", None: "cannot be told"}
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
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in _PACKAGES:
            drawn.add_column(name, overflow="fold")
        for row in _packages(probe):
            drawn.add_row(*(Text(printable(cell)) for cell in row))
        console.print(drawn)
        for backend in probe.backends:
            console.print()
            console.print(Text(printable(_name(backend))), style="bold")
            console.print(_labelled(_backend(backend)))
        if probe.notes:
            console.print()
            console.print(_labelled(("note", note) for note in probe.notes))


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
    for backend in probe.backends:
        yield from ("", f"## {escaped(_name(backend))}", "")
        yield from (f"- {label}: {escaped(text)}" for label, text in _backend(backend))
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


def _name(backend: MlaBackend) -> str:
    return f"{backend.engine} {backend.name}{' (chosen by the server)' if backend.is_chosen else ''}"


def _backend(backend: MlaBackend) -> Iterator[tuple[str, str]]:
    yield "reads FP8 KV, 16-bit queries", _answer(backend.fp8_kv)
    yield "casts the whole pool", _answer(backend.pool_cast)
    yield from (("", _site(site)) for site in backend.pool_cast_sites)
    if backend.plan_dtype is not None:
        yield "plan() gets the queries' type", _answer(backend.plan_dtype)
        yield from (("", _site(site)) for site in backend.plan_sites)
    if backend.head_sizes is not None:
        yield "takes the head sizes", _answer(backend.head_sizes)


def _answer(answer: Answer) -> str:
    how = ", ".join(filter(None, (answer.determined_by, answer.at)))
    return f"{_WORDS[answer.answer]}: {answer.reason}{f' ({how})' if how else ''}"


def _site(site: Site) -> str:
    lines = str(site.line) if site.end_line == site.line else f"{site.line}–{site.end_line}"
    phases = f" ({', '.join(site.phases)})" if site.phases else ""
    conditions = f", if {' and '.join(site.conditions)}" if site.conditions else ""
    return f"{site.file}:{lines} {site.function}{phases}: {site.given}{conditions}"
