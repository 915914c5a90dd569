"""`stepscope probe`, as a user runs it."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from tests.probe.cases import write_package

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

_BACKEND = """
    class FlashInferMLAAttnBackend:
        def forward_decode(self, q, layer):
            k = self.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)
            return run(q, k)

    class Updater:
        def __init__(self, model_runner):
            self.data_type = model_runner.dtype

        def update(self, wrapper):
            wrapper.plan(1, 2, 3, 4, 5, 512, 64, 1, False, 1.0, self.data_type, self.data_type)
"""


@pytest.fixture(name="engine")
def engine_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine that this interpreter finds by PYTHONPATH."""
    package = write_package(
        tmp_path / "site" / "sglang",
        {"srt/layers/attention/flashinfer_mla_backend.py": _BACKEND, "version.py": "__version__ = '0.5.9'\n"},
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


def test_a_report_names_cast_and_plan_with_their_lines(run: Run, engine: Path) -> None:
    code, out, err = run("probe", sys.executable, "--model", "glm-5")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "sglang flashinfer no decode yes" in text
    assert "sglang/srt/layers/attention/flashinfer_mla_backend.py:4 forward_decode: q.dtype" in text
    assert "sglang/srt/layers/attention/flashinfer_mla_backend.py:12 update: model_runner.dtype" in text
    joined = "".join(out.split())  # a long path is folded
    assert f"sglang0.5.9{engine}" in joined
    assert f"PYTHONPATHisthisshell's:{engine.parent}" in joined


def test_json_is_one_document_with_the_keys_of_the_docs(run: Run, engine: Path) -> None:
    code, out, _ = run("probe", sys.executable, "--model", "glm-5", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert set(document) == {
        *("schema_version", "tool", "server", "interpreter", "packages", "gpus", "model", "backends", "notes"),
    }
    (backend,) = document["backends"]
    assert backend["class"] == "FlashInferMLAAttnBackend"
    assert backend["fp8_kv"]["answer"] is False
    assert [(site["line"], site["end_line"]) for site in backend["pool_cast_sites"]] == [(4, 4)]
    assert backend["plan_dtype"]["answer"] is True
    assert backend["pool_cast"]["at"] == f"{engine}/srt/layers/attention/flashinfer_mla_backend.py:4"
    assert document["model"] == {
        "model": "glm-5",
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
    }


def test_markdown_goes_to_a_file(run: Run, engine: Path, tmp_path: Path) -> None:
    target = tmp_path / "probe.md"
    code, out, _ = run("probe", sys.executable, "--format", "markdown", "--output", target)
    assert (code, out) == (0, "")
    assert "| sglang flashinfer | no | decode | yes |" in target.read_text()
    assert engine.is_dir()


def test_what_the_interpreter_and_its_files_say_is_escaped(run: Run, tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text(
        textwrap.dedent(f"""
        #!{sys.executable}
        import json, sys
        answer = {{"version": "3\\x1b[31m", "executable": "x", "prefix": "[bold]p", "folders": {{}}}}
        answer["distributions"] = {{"vllm": "\\u202e1"}}
        print(json.loads(sys.argv[-1])["mark"] + json.dumps(answer))
        """).lstrip()
    )
    fake.chmod(0o755)
    for report_format in ("terminal", "markdown"):
        code, out, _ = run("probe", fake, "--format", report_format)
        assert code == 0
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "x1b" in out
        assert "bold" in out


@pytest.mark.parametrize(
    ("arguments", "expected", "part"),
    [
        (["/nowhere/python"], 2, "does not exist"),
        (["http://192.0.2.1:1"], 2, "probe must run where the server runs"),
        (["1" * 10], 5, "there is no process"),
        ([sys.executable, "--model", "no-such-model"], 2, "--model no-such-model"),
        ([sys.executable, "--model", "llama-3.1-8b"], 2, "keeps keys and values by head"),
        ([sys.executable, "--output", "/nowhere/x"], 2, "--output"),
        ([], 2, "asked"),
    ],
)
def test_errors_are_one_sentence_with_their_code(run: Run, arguments: list[str], expected: int, part: str) -> None:
    code, out, err = run("probe", *arguments)
    assert (code, out) == (expected, "")
    assert part.lower() in err.lower()
    assert err.count("\n") == 1


def test_without_psutil_a_process_needs_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    code, _, err = run("probe", "1")
    assert (code, err.count("\n")) == (4, 1)
    assert "pip install 'stepscope[capture]'" in err
