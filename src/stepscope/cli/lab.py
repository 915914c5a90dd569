"""`stepscope lab`: a decode step with slowdowns to switch on, run, recorded, and held against the rules."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from stepscope.cli import options
from stepscope.cli.output import check_writable, result_stream
from stepscope.errors import ExitCode, PartNotInstalledError, UsageError
from stepscope.report import Format

if TYPE_CHECKING:
    from stepscope.lab.config import LabConfig

lab = App(name="lab", help="The laboratory: a decode step with slowdowns to switch on.", version_flags=[])

_AtLeast1 = Number(gte=1)
_Model = Annotated[str, Parameter("--model", help="Model preset, or `tiny` for a machine without a GPU.")]
_Layers = Annotated[int, Parameter("--layers", validator=_AtLeast1, help="Layers that run, the first of the model.")]
_WeightSets = Annotated[
    int | None,
    Parameter("--weight-sets", validator=_AtLeast1, help="Layers of a kind with weights of their own; the rest share."),
]
_TpSlice = Annotated[int, Parameter("--tp-slice", validator=_AtLeast1, help="Ranks of which one runs.")]
_PoolSlots = Annotated[int, Parameter("--pool-slots", validator=_AtLeast1, help="Slots of each layer's KV pool.")]
_Batch = Annotated[int, Parameter("--batch", validator=_AtLeast1, help="Requests in the step.")]
_Graph = Annotated[bool, Parameter("--graph", help="Replay the step as a CUDA graph.")]
_Seed = Annotated[int, Parameter("--seed", help="Of weights, pool and prompts.")]
_Device = Annotated[str | None, Parameter("--device", help="cuda or cpu; by default the GPU if there is one.")]


@lab.command
def run(  # noqa: PLR0913 -- the options of the command
    *,
    model: _Model = "glm-5",
    layers: _Layers = 16,
    weight_sets: _WeightSets = None,
    tp_slice: _TpSlice = 8,
    batch: _Batch = 1,
    context: Annotated[
        tuple[int, ...], Parameter("--context", help="Live tokens of a request: one for all, or one each (repeatable).")
    ] = (1024,),
    new_tokens: Annotated[
        int, Parameter("--new-tokens", validator=_AtLeast1, help="Tokens a request and step; more than 1 extends.")
    ] = 1,
    pool_slots: _PoolSlots = 495_552,
    attention: Annotated[str, Parameter("--attention", help="gather-cast, or full-pool-cast.")] = "gather-cast",
    graph: _Graph = True,
    slowdown: Annotated[str | None, Parameter("--slowdown", help="What is switched on.")] = None,
    seed: _Seed = 0,
    device: _Device = None,
    report_format: options.ReportFormat = Format.TERMINAL,
    output: options.Output = None,
) -> ExitCode:
    """Run the step, and tell what it takes: without the profiler, in turns of some steps."""
    _require_torch("run")
    from stepscope.lab.config import LabConfig, contexts_of  # noqa: PLC0415 -- the laboratory imports torch

    check_writable(output)
    config = LabConfig(
        model=model,
        layers=layers,
        weight_sets=weight_sets,
        tp_slice=tp_slice,
        contexts=contexts_of(batch, context),
        new_tokens=new_tokens,
        pool_slots=pool_slots,
        attention=attention,
        graph=graph,
        slowdown=slowdown,
        seed=seed,
    )
    _run(config, device, report_format, output)
    return ExitCode.DONE


def _run(config: LabConfig, device: str | None, report_format: Format, output: Path | None) -> None:
    from stepscope import units  # noqa: PLC0415 -- only when there is something to print
    from stepscope.lab.engine import Engine, device_of  # noqa: PLC0415 -- imports torch
    from stepscope.lab.measure import memory_bytes, time_steps  # noqa: PLC0415 -- the same
    from stepscope.report import json, markdown  # noqa: PLC0415 -- as above

    engine = Engine(config, device=device_of(device))
    engine.capture()
    step, memory = time_steps([engine])[0], memory_bytes(engine)
    tokens_per_s = len(config.contexts) * config.new_tokens / step.median_us * 1e6
    rows = (
        ("step", units.time(step.median_us)),
        ("10th to 90th percentile", f"{units.time(step.low_us)} to {units.time(step.high_us)}, {step.steps} steps"),
        ("clock", step.clock),
        ("tokens/s", units.count(round(tokens_per_s, 1))),
        ("memory", "no GPU" if memory is None else units.size(memory)),
    )
    with result_stream(output) as stream:
        if report_format is Format.JSON:
            value = {"config": asdict(config), "step": step, "tokens_per_s": tokens_per_s, "memory_bytes": memory}
            json.write(value, stream)
        elif report_format is Format.MARKDOWN:
            stream.writelines(f"{line}\n" for line in markdown.table(("what", "measured"), rows))
        else:
            stream.writelines(f"{what:24} {value}\n" for what, value in rows)


@lab.command
def record(  # noqa: PLR0913 -- the options of the command
    *,
    output: Annotated[Path, Parameter("--output", help="Folder for the cases, a folder each.")],
    slowdown: Annotated[str | None, Parameter("--slowdown", help="What is switched on.")] = None,
    all_slowdowns: Annotated[bool, Parameter("--all", negative=(), help="Record every slowdown.")] = False,
    model: _Model = "glm-5",
    layers: _Layers = 16,
    weight_sets: _WeightSets = None,
    tp_slice: _TpSlice = 8,
    pool_slots: _PoolSlots = 495_552,
    seed: _Seed = 0,
    device: _Device = None,
) -> ExitCode:
    """Record a slowdown and its healthy twin, as graph and eager, each with the truth beside its traces.

    Raises:
        UsageError: neither one slowdown nor all are asked for.
    """
    _require_torch("record")
    from stepscope.lab import slowdowns  # noqa: PLC0415 -- the laboratory imports torch
    from stepscope.lab.cases import cases_of  # noqa: PLC0415 -- the same
    from stepscope.lab.config import LabConfig  # noqa: PLC0415 -- the same
    from stepscope.lab.engine import device_of  # noqa: PLC0415 -- the same
    from stepscope.lab.record import Recorder  # noqa: PLC0415 -- the same

    if all_slowdowns is (slowdown is not None):
        raise UsageError("lab record takes --slowdown NAME or --all")
    base = LabConfig(
        model=model, layers=layers, weight_sets=weight_sets, tp_slice=tp_slice, pool_slots=pool_slots, seed=seed
    )
    wanted = slowdowns.names() if slowdown is None else (slowdown,)
    cases = [case for name in wanted for case in cases_of(name, base)]
    recorder = Recorder(output, device_of(device))
    for case in cases:
        recorder.time(case)
    for case in cases:
        for folder in recorder.record(case):
            print(folder)  # noqa: T201 -- what was written, as it comes
    return ExitCode.DONE


@lab.command
def ranks(  # noqa: PLR0913 -- the options of the command
    *,
    output: Annotated[Path, Parameter("--output", help="Folder for the two cases, a folder each.")],
    late: Annotated[
        int, Parameter("--late", validator=Number(gte=0, lt=2), help="Rank that is late at every all-reduce.")
    ] = 1,
    batch: _Batch = 1,
    model: _Model = "glm-5",
    layers: _Layers = 4,
    pool_slots: _PoolSlots = 495_552,
    seed: _Seed = 0,
) -> ExitCode:
    """Record two ranks of which one is 200 µs late at every all-reduce, and the same with none late.

    Each rank has a GPU of its own; without two, both run on the CPU.
    """
    _require_torch("ranks")
    from stepscope.lab.config import LabConfig  # noqa: PLC0415 -- the laboratory imports torch
    from stepscope.lab.ranks import record_ranks  # noqa: PLC0415 -- the same

    config = LabConfig(model=model, layers=layers, contexts=(1024,) * batch, pool_slots=pool_slots, seed=seed)
    for folder in record_ranks(config, output, late=late):
        print(folder)  # noqa: T201 -- what was written
    return ExitCode.DONE


@lab.command
def prove(
    folder: Annotated[Path, Parameter(help="What `lab record` wrote.")],
    /,
    *,
    report_format: Annotated[
        Literal["markdown", "json"], Parameter("--format", help="The page, or a row for each recording of a slowdown.")
    ] = "markdown",
    output: options.Output = None,
) -> ExitCode:
    """Diagnose recorded cases, and set what the rules say beside the truth."""
    _require_torch("prove")
    from stepscope.lab.prove import prove as examine  # noqa: PLC0415 -- imports torch
    from stepscope.pipeline.detect.registry import all_rules  # noqa: PLC0415 -- loads polars

    check_writable(output)
    proof = examine(folder, {rule.id for rule in all_rules()})
    with result_stream(output) as stream:
        if report_format == "json":
            from stepscope.report import json  # noqa: PLC0415 -- only when it is asked for

            json.write(list(proof.rows()), stream)
        else:
            stream.writelines(f"{line}\n" for line in proof.markdown())
    return ExitCode.DONE


def _require_torch(command: str) -> None:
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise PartNotInstalledError(f"lab {command} needs {' and '.join(missing)}: pip install 'stepscope[gpu]'")
