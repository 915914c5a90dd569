"""What a real vLLM server without a GPU records, and what stepscope says of it; traces/README.md has the facts."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes import is_one_sentence

from stepscope import diagnose, query
from stepscope.pipeline.load import find_traces

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., tuple[int, str, str]]

TRACES = Path(__file__).parent / "traces"
(WORKER,) = TRACES.glob("rank0.*.json.gz")
(FRONT_END,) = TRACES.glob("*.async_llm.*.json.gz")


def recorded(path: Path) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(path.read_bytes())))


def kinds(path: Path) -> Counter[str]:
    return Counter(row["cat"] for row in recorded(path)["traceEvents"] if row["ph"] == "X")


def test_the_traces_are_as_their_readme_says_and_name_no_machine() -> None:
    assert sum(path.stat().st_size for path in TRACES.iterdir()) < 1_500_000
    assert kinds(WORKER) == {"cpu_op": 3072, "python_function": 18860, "user_annotation": 7, "Trace": 1}
    assert kinds(FRONT_END) == {"python_function": 5719, "Trace": 1}
    for path in (WORKER, FRONT_END):
        trace = recorded(path)
        assert trace["host_name"] == "host"
        assert trace["vllm_version"] == "0.32.0"
        paths = {row["name"] for row in trace["traceEvents"] if row["name"].startswith("/")}
        assert all(name.startswith("/srv/") for name in paths)


def test_the_workers_trace_says_that_no_gpu_was_at_work_and_checks_nothing() -> None:
    diagnosis = diagnose([WORKER])
    (trace,) = diagnosis.traces
    assert (trace.events, trace.rank, trace.device, trace.complete) == (21_950, 0, None, False)
    (warning,) = (warning for warning in trace.warnings if warning.code == "no-gpu-events")
    assert warning.message.endswith("the process ran on the CPU alone, or recorded without GPU activity")
    assert (diagnosis.steps, diagnosis.breakdown, diagnosis.findings) == ([], [], [])
    assert {unchecked.missing for unchecked in diagnosis.could_not_check} == {"no GPU events"}
    assert {unchecked.rule for unchecked in diagnosis.could_not_check} >= {"kv-pool-cast", "launch-bound"}


def test_the_workers_ops_and_steps_can_still_be_asked_for() -> None:
    steps = query(WORKER, "SELECT phase, batch_size FROM steps")
    # execute_context_1(16)_generation_0(0), then five times execute_context_0(0)_generation_1(1)
    assert steps["phase"].to_list()[:6] == ["prefill", *["decode"] * 5]
    assert steps["batch_size"].to_list()[:6] == [1] * 6
    embeddings = query(WORKER, "SELECT input_dims FROM ops WHERE name = 'aten::embedding'")
    assert embeddings.height == 6


def test_a_front_ends_trace_by_itself_is_said_to_be_none_of_a_model() -> None:
    diagnosis = diagnose([FRONT_END])
    (trace,) = diagnosis.traces
    assert (trace.events, trace.rank, trace.complete) == (5_732, None, False)
    (warning,) = (warning for warning in trace.warnings if warning.code == "no-gpu-events")
    assert warning.message.endswith("a process that runs no model, as a server's front end, leaves such a trace")


def test_of_a_folder_with_both_the_worker_is_diagnosed(run: Run) -> None:
    assert find_traces(TRACES) == [str(WORKER)]
    code, stdout, stderr = run("diagnose", TRACES, "--format", "json", "--no-cache")
    assert code == 0
    assert [trace["path"] for trace in json.loads(stdout)["traces"]] == [str(WORKER)]
    assert is_one_sentence(stderr)
    assert f"passed over {FRONT_END}: the trace of vLLM's front end" in stderr


@pytest.mark.parametrize("command", [("ops", "--name", "*"), ("sql",)])
def test_a_folder_with_both_is_one_trace_to_commands_that_take_one(run: Run, command: tuple[str, ...]) -> None:
    query_ = ["SELECT count(*) AS ops FROM ops"] if command == ("sql",) else []
    code, stdout, _ = run(command[0], TRACES, *query_, *command[1:], "--format", "json", "--no-cache")
    assert code == 0
    assert json.loads(stdout)["ops" if command[0] == "ops" else "rows"]


def test_a_folder_of_a_front_end_alone_is_still_read(tmp_path: Path) -> None:
    (tmp_path / FRONT_END.name).write_bytes(FRONT_END.read_bytes())
    assert [trace.events for trace in diagnose([tmp_path]).traces] == [5_732]
