"""`stepscope capture sglang` from a stand-in that speaks SGLang's protocol: what comes back, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.capture.sglang_server import Behaviour, Sglang, serving
from tests.processes import is_one_sentence

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT = ("--context", "64", "--steps", "3")


def captured(run: Callable[..., tuple[int, str, str]], server: Sglang, folder: Path, *more: str) -> dict[str, Any]:
    code, out, err = run("capture", "sglang", server.url, *SHORT, "--folder", folder, "--format", "json", *more)
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def failed(run: Callable[..., tuple[int, str, str]], server: Sglang, folder: Path, *more: str) -> str:
    """Return the one sentence of a capture that ends with exit code 5."""
    code, out, err = run("capture", "sglang", server.url, *SHORT, "--folder", folder, *more)
    assert (code, out) == (5, "")
    assert is_one_sentence(err)
    return err


def test_every_ranks_trace_comes_back_with_what_the_server_told(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    with serving() as server:
        document = captured(run, server, tmp_path)
    told = document["server"]
    assert (told["server"], told["version"], told["model"]) == ("SGLang", "0.5.14", "zai-org/GLM-5")
    assert (told["tp"], told["pool_slots"], told["page_size"]) == (2, 495_552, 64)
    assert (told["attention_backend"], told["graphs"]) == ("flashinfer", True)
    workers = [trace for trace in document["traces"] if trace["kind"] == "worker"]
    assert [(trace["rank"], trace["whole"]) for trace in workers] == [(0, True), (1, True)]
    assert {path.name for path in tmp_path.iterdir()} == {Path(trace["path"]).name for trace in workers} | {
        "server-info.json"
    }
    assert document["problems"] == []
    assert "a-secret" not in (tmp_path / "server-info.json").read_text()


def test_it_asks_for_exact_prompts_explicit_switches_and_one_step_more(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    with serving() as server:
        captured(run, server, tmp_path, "--batch", "3")
    (start,) = server.starts
    assert start == {
        "output_dir": str(tmp_path),
        "num_steps": 4,
        "activities": ["CPU", "GPU"],
        "with_stack": False,
        "record_shapes": True,
        "profile_by_stage": False,
    }
    assert server.stops == 0  # it ended by itself
    assert server.most_at_once == 3
    assert {len(prompt["input_ids"]) for prompt in server.prompts} == {64}
    assert all(prompt["sampling_params"]["ignore_eos"] for prompt in server.prompts)
    assert len({tuple(prompt["input_ids"]) for prompt in server.prompts}) == len(server.prompts)  # no prefix is cached


def test_the_traffic_is_measured_with_the_profiler_and_without(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    with serving() as server:
        traffic = captured(run, server, tmp_path)["traffic"]
    assert traffic["unprofiled"]["between_tokens_us"]["median"] >= 4000  # a step of the stand-in
    assert traffic["unprofiled"]["tokens_per_s"] < 1 / 0.004
    assert traffic["profiler_overhead"] is not None
    assert traffic["context"] == 64
    assert traffic["live_tokens"] > 64


def test_graphs_are_said_not_to_be_recorded_with_the_line_that_would(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    with serving() as server:
        (unrecorded,) = captured(run, server, tmp_path)["will_not_record"]
    assert unrecorded["code"] == "graphs"
    assert unrecorded["restart"].endswith("--disable-cuda-graph")


def test_one_command_ends_in_a_diagnosis(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving() as server:
        code, out, err = run("capture", "sglang", server.url, *SHORT, "--folder", tmp_path, "--diagnose")
    assert (code, err) == (0, "")
    assert "SGLang 0.5.14" in out
    assert "decode" in out


def test_a_second_server_tells_the_names(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    eager = Behaviour()
    eager.info["disable_cuda_graph"] = True
    with serving() as server, serving(eager) as twin:
        document = captured(run, server, tmp_path, "--two-pass", twin.url)
        assert (server.starts[0]["with_stack"], twin.starts[0]["with_stack"]) == (False, True)
    assert document["eager"]["server"]["graphs"] is False
    assert "--capture-trace" in document["diagnose"]


def test_a_second_server_with_graphs_is_refused(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving() as server, serving() as twin:
        assert "replays graphs too" in failed(run, server, tmp_path, "--two-pass", twin.url)
        assert not server.starts


WRONG: dict[str, tuple[Behaviour, str]] = {
    "one of two ranks does not come": (Behaviour(missing=1), "the traces of 1 of 2 ranks came"),
    "no rank comes": (Behaviour(missing=2), "no rank's trace appeared"),
    "files end too early": (Behaviour(cut=True), "end too early"),
    "nothing of the GPU": (Behaviour(without_gpu_events=True), "GPU"),
    "it dies while it records": (Behaviour(dies_after_steps=2), "broke off"),
    "it wants a key": (Behaviour(key="k"), "needs authentication"),
    "it refuses to start": (Behaviour(refuses=True), "already in progress"),
}


@pytest.mark.parametrize(("behaviour", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_goes_wrong_is_one_sentence(
    behaviour: Behaviour, said: str, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    with serving(behaviour) as server:
        code, _, err = run("capture", "sglang", server.url, *SHORT, "--folder", tmp_path, "--timeout", "5")
        assert code == 5
        assert is_one_sentence(err)
        assert said in err
        assert server.gone or not server.is_recording


def test_a_recording_that_does_not_end_is_stopped(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving(Behaviour(never_ends=True)) as server:
        run("capture", "sglang", server.url, *SHORT, "--folder", tmp_path, "--timeout", "5")
        assert server.stops == 1
        assert not server.is_recording


def test_a_stop_that_hangs_is_given_up_with_a_hint(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving(Behaviour(never_ends=True, stop_hangs_s=12)) as server:
        said = failed(run, server, tmp_path, "--timeout", "5")
    assert "stop_profile did not answer within 5 s" in said
    assert "recording until it is restarted" in said


def test_a_key_is_sent_as_a_header(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving(Behaviour(key="k")) as server:
        captured(run, server, tmp_path, "--header", "Authorization: Bearer k")


def test_nobody_listens(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving() as server:
        url = server.url
    code, out, err = run("capture", "sglang", url, "--folder", tmp_path)
    assert (code, out) == (5, "")
    assert is_one_sentence(err)
    assert "cannot be reached" in err


def test_a_context_that_does_not_fit_is_wrong_usage(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    with serving() as server:
        code, _, err = run("capture", "sglang", server.url, "--context", "5000", "--folder", tmp_path)
        assert code == 2
        assert "give --context" in err
        assert not server.starts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_stops_the_recording(number: signal.Signals, tmp_path: Path) -> None:
    with serving(Behaviour(never_ends=True)) as server:
        command = [sys.executable, "-m", "stepscope", "capture", "sglang", server.url, *SHORT]
        process = subprocess.Popen(  # noqa: S603 -- our own command
            [*command, "--folder", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        with process:
            until = time.monotonic() + 30
            while not server.is_recording and time.monotonic() < until:
                time.sleep(0.02)
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err
        assert server.stops == 1
        assert not server.is_recording
