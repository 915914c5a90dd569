"""The environment that a server really runs in: its interpreter, its packages, its GPUs, and its backends for MLA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.document import Gpu, HeadSizes, Interpreter, Probe, Server
from stepscope.errors import UsageError
from stepscope.model import Mla, load_model
from stepscope.probe import sglang, vllm
from stepscope.probe.arguments import server_arguments
from stepscope.probe.case import Case
from stepscope.probe.packages import constant, packages
from stepscope.probe.run import CannotEnterError, collect
from stepscope.probe.source.program import Program
from stepscope.probe.target import find_target
from stepscope.probe.unentered import read_only

if TYPE_CHECKING:
    from stepscope.document import MlaBackend
    from stepscope.probe.run import Collected

_ENGINES = {"sglang": sglang.backends, "vllm": vllm.backends}
_CHOOSING = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")


def probe(asked: str, *, model: str | None = None) -> Probe:
    """Return what runs a server, by its URL on this machine, its PID, or the path of its Python.

    Nothing is run in the server's process: a small script runs in an interpreter of its own, started from the same file
    with the same module path; the packages' source is read as text.

    Raises:
        UsageError: there is no such file, host or model, or it is no Python.
        DeviceError: no such process, one that may not be looked at, or an interpreter that does not answer.
        PartNotInstalledError: psutil is needed to look at processes.
    """
    sizes = None if model is None else _head_sizes(model)
    target = find_target(asked)
    notes = list(target.notes)
    try:
        collected, was_run = collect(target), True
    except CannotEnterError as error:
        collected, was_run = read_only(target), False
        notes.append(f"its container cannot be entered ({error}), so its files were only read: GPUs are not known")
    if was_run and collected.why_no_gpus:
        notes.append(f"no GPU: {collected.why_no_gpus}")
    if len({gpu.compute_capability for gpu in collected.gpus}) > 1:
        notes.append("its GPUs differ: what is said of backends is of the first")
    files, arguments = target.files, server_arguments(target.command)
    torch_version = f"{collected.folders.get('torch', '')}/version.py"
    case = Case(
        program=Program(files, collected.folders),
        files=files,
        folders=collected.folders,
        capability=_capability(collected),
        model=sizes,
        chosen=frozenset(arguments[name] for name in _CHOOSING if name in arguments),
    )
    return Probe(
        server=Server(
            asked=asked,
            pid=target.pid,
            python=target.python,
            python_found_by=target.python_found_by,
            root=None if target.root is None else str(target.root),
            cwd=target.cwd,
            arguments=arguments,
        ),
        interpreter=Interpreter(
            version=collected.version,
            executable=collected.executable,
            prefix=collected.prefix,
            torch_cuda=constant(torch_version, "cuda", files),
            torch_hip=constant(torch_version, "hip", files),
            driver_cuda=collected.driver_cuda,
            was_run=was_run,
        ),
        packages=packages(collected.distributions, collected.folders, files),
        gpus=[
            Gpu(name=gpu.name, compute_capability=gpu.compute_capability, memory_bytes=gpu.memory_bytes)
            for gpu in collected.gpus
        ],
        model=sizes,
        backends=_backends(case, notes),
        notes=notes,
    )


def _backends(case: Case, notes: list[str]) -> list[MlaBackend]:
    found: list[MlaBackend] = []
    for engine, backends in _ENGINES.items():
        if engine not in case.folders:
            continue
        try:
            found += backends(case)
        except RecursionError:
            notes.append(f"the source of {engine} is nested too deeply to be followed")
    if not found and not set(_ENGINES) & set(case.folders):
        notes.append("neither sglang nor vllm is installed in this interpreter, so there are no backends to look at")
    return found


def _capability(collected: Collected) -> tuple[int, int] | None:
    if not collected.gpus:
        return None
    major, minor = collected.gpus[0].compute_capability.split(".")
    return int(major), int(minor)


def _head_sizes(name: str) -> HeadSizes:
    attention = load_model(name).attention
    if not isinstance(attention, Mla):
        raise UsageError(f"--model {name}: keeps keys and values by head, so backends for MLA do not run it")
    return HeadSizes(
        model=name,
        kv_lora_rank=attention.kv_lora_rank,
        qk_nope_head_dim=attention.qk_nope_head_dim,
        qk_rope_head_dim=attention.qk_rope_head_dim,
        v_head_dim=attention.v_head_dim,
    )
