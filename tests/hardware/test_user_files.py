"""The user's files: written whole, read back, laid over the shipped ones, and damaged in many ways."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import is_one_sentence, process

from stepscope import hardware
from stepscope.errors import ExitCode, UsageError
from stepscope.hardware import FIGURES, Figure, Gpu, find_gpu, gpu_names
from stepscope.hardware.files import to_toml

if TYPE_CHECKING:
    from collections.abc import Callable

COPY = Figure(4000.0, "measured here")
needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything"
)


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "stepscope" / "gpus"


def measured(name: str = "NVIDIA H200") -> Gpu:
    return Gpu(name, [name], memory_measured_gb_per_s=COPY)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
GPUS = st.builds(
    Gpu,
    TEXT,
    st.lists(TEXT),
    **{field: st.none() | st.builds(Figure, st.floats(1e-300, 1e300), TEXT.filter(str.strip)) for field in FIGURES},
)


@given(GPUS)
def test_a_file_holds_what_was_written(gpu: Gpu) -> None:
    """Any text and any number, read back by Python's own reader."""
    read = tomllib.loads(to_toml(gpu))
    assert (read.pop("name"), read.pop("recorded_names")) == (gpu.name, gpu.recorded_names)
    known = {field: figure for field in FIGURES if (figure := getattr(gpu, field))}
    assert read == {field: {"value": figure.value, "source": figure.source} for field, figure in known.items()}


def test_a_measured_figure_wins_and_the_others_stay(folder: Path) -> None:
    shipped = find_gpu("h200", None)
    path = hardware.keep("h200", measured())
    assert path == folder / "h200.toml"
    gpu = find_gpu(None, "NVIDIA H200")
    assert gpu is not None
    assert shipped is not None
    assert gpu.memory_measured_gb_per_s == COPY
    assert (gpu.name, gpu.recorded_names) == (shipped.name, shipped.recorded_names)
    others = set(FIGURES) - {"memory_measured_gb_per_s"}
    assert all(getattr(gpu, field) == getattr(shipped, field) for field in others)


def test_the_diagnosis_uses_it(folder: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    before = run("floor", "--model", "glm-5", "--gpu", "h200", "--tp", "8")
    hardware.keep("h200", Gpu("H200", ["NVIDIA H200"], memory_measured_gb_per_s=Figure(430.0, "a slow one")))
    after = run("floor", "--model", "glm-5", "--gpu", "h200", "--tp", "8")
    assert (before[0], after[0]) == (0, 0)
    assert before[1] != after[1]
    (folder / "h200.toml").unlink()
    assert run("floor", "--model", "glm-5", "--gpu", "h200", "--tp", "8") == before


def test_a_gpu_that_does_not_ship_gets_a_name(folder: Path) -> None:
    name = hardware.name_of("NVIDIA H100 PCIe")
    assert name == "nvidia-h100-pcie"
    hardware.keep(name, measured("NVIDIA H100 PCIe"))
    assert name in gpu_names()
    assert find_gpu(name, None) == find_gpu(None, "NVIDIA H100 PCIe") == measured("NVIDIA H100 PCIe")
    assert [file.name for file in folder.iterdir()] == ["nvidia-h100-pcie.toml"]


def test_a_second_name_for_a_gpu_of_the_user_is_added(folder: Path) -> None:  # noqa: ARG001 -- where it is kept
    hardware.keep("h200", measured("NVIDIA H200 of a new driver"))
    assert find_gpu(None, "NVIDIA H200 of a new driver") == find_gpu("h200", None) == find_gpu(None, "NVIDIA H200")


def test_an_earlier_file_keeps_its_other_figures(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "H200.toml").write_text(
        'name = "mine"\nrecorded_names = []\n[bf16_tflops]\nvalue = 900\nsource = "my own reading"\n'
    )
    hardware.keep("h200", measured())
    gpu = find_gpu("h200", None)
    assert gpu is not None
    assert gpu.bf16_tflops == Figure(900, "my own reading")
    assert gpu.memory_measured_gb_per_s == COPY


def test_what_is_no_gpus_file_is_passed_over(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("not one")
    (folder / "folder.toml").mkdir()
    (folder / ".stepscope-abc").write_text("left by a process that was killed")
    assert "folder" not in gpu_names()


HEAD = b'name = "x"\nrecorded_names = []\n'
DAMAGED = {
    "empty": b"",
    "cut": b'name = "x"\nrecorded_names = ["NVI',
    "no TOML": b"{}",
    "no text": b"\xff\xfe\x00",
    "an unknown key": HEAD + b"[speed]\nvalue = 1\nsource = 's'\n",
    "no source": HEAD + b"[memory_gb_per_s]\nvalue = 1\n",
    "an empty source": HEAD + b"[memory_gb_per_s]\nvalue = 1\nsource = ' '\n",
    "a bare number": HEAD + b"memory_gb_per_s = 1\n",
    "a text for a number": HEAD + b"[memory_gb_per_s]\nvalue = '1'\nsource = 's'\n",
    "zero": HEAD + b"[memory_gb_per_s]\nvalue = 0\nsource = 's'\n",
    "below zero": HEAD + b"[memory_gb_per_s]\nvalue = -1\nsource = 's'\n",
    "infinite": HEAD + b"[memory_gb_per_s]\nvalue = inf\nsource = 's'\n",
    "no number": HEAD + b"[memory_gb_per_s]\nvalue = nan\nsource = 's'\n",
    "no names": b'name = "x"\n',
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_one_sentence_with_its_path(
    what: str, folder: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    folder.mkdir(parents=True)
    path = folder / "h200.toml"
    path.write_bytes(DAMAGED[what])
    code, out, err = run("floor", "--model", "glm-5", "--gpu", "h200")
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert str(path) in err
    with pytest.raises(UsageError, match="correct it or remove it"):
        hardware.keep("h200", measured())
    assert path.read_bytes() == DAMAGED[what]


def test_a_damaged_file_is_said_before_a_trace_is_read(
    folder: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    folder.mkdir(parents=True)
    (folder / "h200.toml").write_bytes(b"{}")
    trace = tmp_path / "empty.json"
    trace.touch()  # read first, it would be exit code 3
    assert run("diagnose", trace)[0] == ExitCode.WRONG_USAGE


@needs_permissions
def test_a_file_that_may_not_be_read_is_said(folder: Path) -> None:
    path = hardware.keep("h200", measured())
    path.chmod(0)
    with pytest.raises(UsageError, match=r"h200\.toml: cannot be read"):
        find_gpu("h200", None)
    path.chmod(0o600)
    assert folder.is_dir()


@needs_permissions
def test_settings_that_may_not_be_seen_are_none(folder: Path) -> None:
    hardware.keep("h200", measured())
    folder.chmod(0)
    gpu = find_gpu("h200", None)
    folder.chmod(0o700)
    assert gpu is not None
    assert gpu.memory_measured_gb_per_s != COPY


@needs_permissions
def test_a_folder_that_may_not_be_written_is_said(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    with pytest.raises(UsageError, match=r"gpus: cannot be written \(Permission denied\)"):
        hardware.writable_user_folder()
    folder.chmod(0o700)


def test_a_file_in_place_of_the_folder_is_said(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("in the way")
    with pytest.raises(UsageError, match="gpus: cannot be written"):
        hardware.keep("h200", measured())
    assert find_gpu("h200", None) is not None


def test_a_write_that_fails_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hardware.keep("h200", measured())
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UsageError, match="No space left on device"):
        hardware.keep("h200", Gpu("x", ["NVIDIA H200"], memory_measured_gb_per_s=Figure(1.0, "s")))
    assert path.read_bytes() == before
    assert [file.name for file in folder.iterdir()] == ["h200.toml"]


def test_without_a_home_the_shipped_figures_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container whose user is not in its list of users: nothing is made in the working folder."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert find_gpu("h200", None) is not None
    with pytest.raises(UsageError, match="set HOME or XDG_CONFIG_HOME"):
        hardware.keep("h200", measured())
    assert list(tmp_path.iterdir()) == []


def test_a_process_without_a_home_runs(tmp_path: Path) -> None:
    done = process("floor", "--model", "glm-5", "--gpu", "h200", HOME=str(tmp_path / "missing"), XDG_CONFIG_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
