"""The published source that a real trace was recorded from: a wheel from the registry, unzipped, never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

SGLANG = "sglang==0.5.14"
SHA256 = "4fe16056b45c8aca00f5f90ceb174dc3a62a3f5dccf159c791370795cd00fc99"
_PIP = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
    *("--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64"),
)


def sglang_source(cache: pytest.Cache) -> Path:
    """Return the folder with SGLang's source (12 MB, downloaded once into pytest's cache).

    Without a registry the test is skipped, but under CI it fails: there it must have run.
    """
    kept = cache.mkdir("published")
    folder = kept / SHA256
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=kept) as new:
            wheel = _download(Path(new))
            assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256, f"{wheel.name} is not the one of the trace"
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(Path(new) / "source")
            try:
                (Path(new) / "source").rename(folder)
            except OSError:  # another worker was faster
                assert folder.is_dir()
    return folder


def _download(folder: Path) -> Path:
    done = subprocess.run([*_PIP, "--dest", folder, SGLANG], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        why = f"{SGLANG} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    (wheel,) = folder.glob("*.whl")
    return wheel
