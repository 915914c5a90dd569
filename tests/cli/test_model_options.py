"""The options on the model and how it is served, as `diagnose` and `floor` take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from tests.model.test_server_info import HOSTILE as HOSTILE_ANSWERS
from tests.model.test_server_info import SGLANG
from tests.processes import is_one_sentence
from tests.samples_of_trouble import HOSTILE

from stepscope.document import json_schema
from stepscope.model.config import load_config

if TYPE_CHECKING:
    from collections.abc import Callable

Result = tuple[int, str, str]
REAL = Path(__file__).parents[2].parent / "shared/traces/sglang-h200"


@pytest.fixture(name="info")
def info_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "info.json"
    path.write_text(json.dumps(SGLANG))
    return path


def model_of(run: Callable[..., Result], *arguments: str | Path) -> dict[str, Any]:
    code, out, err = run("diagnose", *arguments, "--format", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    model: dict[str, Any] = document["model"]
    return model


def test_what_the_server_tells_is_in_the_document(trace: Path, info: Path, run: Callable[..., Result]) -> None:
    assert model_of(run, trace, "--server-info", info) == {
        "name": "glm-5",
        "source": "server info",
        "layers": 78,
        "tp": 8,
        "ep": 1,
        "dp": 1,
        "weights": None,
        "kv_dtype": "Float8_e4m3fn",
        "pool_slots": 495552,
        "page_size": 1,
        "notes": [],
    }


def test_options_win_and_what_contradicts_is_printed(trace: Path, info: Path, run: Callable[..., Result]) -> None:
    options: list[str | Path] = ["--server-info", info, "--model", "glm-5", "--tp", "4", "--ep", "2", "--dp", "4"]
    found = model_of(run, trace, *options)
    assert (found["source"], found["tp"], found["ep"], found["dp"]) == ("preset", 4, 2, 4)
    assert found["notes"][0] == "--tp 4 is used, though the server tells 8"
    for report_format in ("terminal", "markdown"):
        printed = " ".join(run("diagnose", trace, *options, "--format", report_format)[1].split())
        assert "78 layers, TP 4, EP 2, DP 4, KV Float8_e4m3fn, pool of 495,552 slots" in printed.replace("\\", "")
        assert "though the server tells 8" in printed


def test_nothing_told_is_null(trace: Path, run: Callable[..., Result]) -> None:
    found = model_of(run, trace, "--model", "glm-5")
    nulls = ("tp", "ep", "dp", "weights", "kv_dtype", "pool_slots", "page_size")
    assert {key: found[key] for key in nulls} == dict.fromkeys(nulls)


def test_a_config_json_and_its_folder(trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({**load_config("glm-5"), "quantization_config": quantised}))
    for name in (tmp_path, tmp_path / "config.json"):
        found = model_of(run, trace, "--model", name, "--tp", "8")
        assert (found["name"], found["source"]) == (str(name), str(tmp_path / "config.json"))
        assert set(found["weights"].values()) == {"fp8"}


def test_tp_is_taken_where_the_server_tells_the_model(trace: Path, info: Path, run: Callable[..., Result]) -> None:
    assert run("diagnose", trace, "--tp", "8")[0] == 2
    assert run("diagnose", trace, "--tp", "8", "--server-info", info)[0] == 0


def test_a_hostile_name_of_a_model_comes_out_harmless(trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    path = tmp_path / "info.json"
    path.write_text(json.dumps(SGLANG | {"model_path": HOSTILE}))
    for report_format in ("terminal", "markdown"):
        code, out, _ = run("diagnose", trace, "--server-info", path, "--format", report_format)
        assert code == 0
        assert not any(character in out for character in "\x1b\x07\x9b\u202e\u200b")
        assert "<script>" not in out or report_format == "terminal"
    assert model_of(run, trace, "--server-info", path)["layers"] is None


WRONG = {
    "no ranks": ["--model", "glm-5", "--tp", "8", "--ep", "0"],
    "groups that do not divide": ["--model", "glm-5", "--tp", "8", "--ep", "3"],
    "groups without ranks": ["--model", "glm-5", "--dp", "8"],
    "ranks without a model": ["--tp", "8"],
    "experts without a model": ["--ep", "8"],
    "no answer": ["--server-info", "missing.json"],
    "a folder": ["--server-info", "."],
    "the trace": ["--server-info", "TRACE"],
    "weights": ["--model", "glm-5", "--weights", "nvfp4"],  # the floor's option: a trace has its own types
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_usage_exits_with_2(
    what: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("diagnose", trace, *(trace if word == "TRACE" else word for word in WRONG[what]))
    assert (code, out) == (2, "")
    assert is_one_sentence(err)


@pytest.mark.parametrize("what", HOSTILE_ANSWERS)
def test_a_hostile_answer_exits_with_2(what: str, trace: Path, tmp_path: Path, run: Callable[..., Result]) -> None:
    path, told = tmp_path / "info.json", HOSTILE_ANSWERS[what]
    path.write_bytes(told if isinstance(told, bytes) else json.dumps(told).encode())
    code, out, err = run("diagnose", trace, "--server-info", path)
    assert (code, out) == (2, "")
    assert is_one_sentence(err)


class TestFloor:
    def test_formats_of_the_checkpoint_are_taken(self, tmp_path: Path, run: Callable[..., Result]) -> None:
        """75 layers of 256 experts, 8 hit by one token: 3 x 256 x 6144 values of 4.5 bits each on a rank of eight."""
        (tmp_path / "config.json").write_text(json.dumps(load_config("glm-5")))
        quantised = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "*shared_experts*"]}}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantised))
        _, out, _ = run("floor", "--model", tmp_path, "--gpu", "rtx-pro-6000", "--tp", "8", "--format", "json")
        parts = {part["name"]: part["bytes"] for part in json.loads(out)["components"]}
        values = 75 * 8 * 3 * 256 * 6144
        assert parts["experts"] == pytest.approx(values * 4.5 / 8, rel=1e-4)
        assert parts["shared expert"] == 75 * 3 * 256 * 6144 * 2

    def test_a_server_tells_ranks_and_kv(self, info: Path, run: Callable[..., Result]) -> None:
        told, same = (
            json.loads(run("floor", "--gpu", "h200", *options, "--format", "json")[1])
            for options in (["--server-info", info], ["--model", "glm-5", "--tp", "8", "--kv-dtype", "fp8"])
        )
        assert told == same
        assert "weights are BF16, as nothing tells otherwise (--weights)" in told["assumptions"]

    def test_nvfp4_is_not_faster_than_q4_k_where_memory_bounds(self, run: Callable[..., Result]) -> None:
        """Both take 4.5 bits a weight."""
        floors = [
            json.loads(run(*f"floor --model glm-5 --gpu rtx-pro-6000 --tp 8 --weights {name} --format json".split())[1])
            for name in ("nvfp4", "gguf:Q4_K")
        ]
        assert floors[0]["floor_us_per_step"] == pytest.approx(floors[1]["floor_us_per_step"], rel=1e-3)

    def test_experts_on_ranks_of_their_own(self, run: Callable[..., Result]) -> None:
        """Shared out, a rank holds as many values of experts as when each expert is split."""
        bytes_of = {}
        for options in ([], ["--ep", "8"], ["--ep", "8", "--dp", "8"]):
            arguments = ["floor", "--model", "glm-5", "--gpu", "h200", "--tp", "8", "--batch", "64", *options]
            parts = json.loads(run(*arguments, "--format", "json")[1])["components"]
            bytes_of[len(options)] = {part["name"]: part["bytes"] for part in parts}
        assert bytes_of[2]["experts"] == bytes_of[0]["experts"]
        assert bytes_of[4]["attention projections"] > bytes_of[0]["attention projections"]  # each rank has all heads

    @pytest.mark.parametrize(
        "options",
        [["--weights", "gguf:Q4_K_M"], ["--weights", "int3"], ["--kv-dtype", "int8"], ["--ep", "5"]],
    )
    def test_wrong_usage_exits_with_2(self, options: list[str], run: Callable[..., Result]) -> None:
        code, out, err = run("floor", "--model", "glm-5", "--gpu", "h200", "--tp", "8", *options)
        assert (code, out) == (2, "")
        assert is_one_sentence(err)

    def test_a_model_is_needed(self, tmp_path: Path, run: Callable[..., Result]) -> None:
        assert run("floor", "--gpu", "h200")[0] == 2
        path = tmp_path / "info.json"
        path.write_text(json.dumps(SGLANG | {"model_path": "acme/Secret-7T"}))
        code, out, err = run("floor", "--gpu", "h200", "--server-info", path)
        assert (code, out) == (2, "")
        assert "acme/Secret-7T, is not known here" in err


@pytest.mark.skipif(not REAL.exists(), reason="the real traces beside the repository are not there")
def test_a_real_servers_pool_is_certain_once_its_slots_are_told(tmp_path: Path, run: Callable[..., Result]) -> None:
    """A CUDA graph: no op, no shape. The server had 495,552 slots, its tensor one row more."""
    path = tmp_path / "info.json"
    fields = {"model_path": str(REAL / "model-config.json"), "tp_size": 1, "page_size": 1}
    path.write_text(json.dumps(SGLANG | fields))
    trace = REAL / "flashinfer-fp8-graph.trace.json.gz"
    document = json.loads(
        run("diagnose", trace, "--server-info", path, "--context", "1000", "--no-cache", "--format", "json")[1]
    )
    found = document["findings"][0]
    assert (found["rule"], found["confidence"]) == ("kv-pool-cast", "high")
    assert found["evidence"]["input_shape"] == [495553, 1, 576]
    assert found["evidence"]["live_fraction"] == 1000 / 495553
    assert document["model"]["weights"] == dict.fromkeys(["attention", "dense MLP", "experts", "shared expert"], "bf16")
