"""Published source of engines: wheels from the registry, known by their digests, unzipped, never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest


class Wheel(NamedTuple):
    """A published version."""

    requirement: str
    sha256: str


SGLANG_0_4_6 = Wheel("sglang==0.4.6", "7f54dd9fa19b54d39f34a0905c1b6e1b02e7b7d1346bd03d7b6e2c05d002cb68")
SGLANG_0_5_9 = Wheel("sglang==0.5.9", "8a936c4d25fea605f44254e533cff2144c73ceffbc1f8738aba393461bbb64d1")
SGLANG_0_5_14 = Wheel("sglang==0.5.14", "4fe16056b45c8aca00f5f90ceb174dc3a62a3f5dccf159c791370795cd00fc99")
"""The one that a real trace was recorded from (12 MB; the others have 1 and 5 MB)."""
_PIP = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
    *("--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_34_x86_64"),
)


def published_source(cache: pytest.Cache, wheel: Wheel) -> Path:
    """Return the folder with a wheel's source, downloaded once into pytest's cache.

    Without a registry the test is skipped, but under CI it fails: there it must have run.
    """
    kept = cache.mkdir("published")
    folder = kept / wheel.sha256
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=kept) as new:
            file = _download(Path(new), wheel.requirement)
            assert hashlib.sha256(file.read_bytes()).hexdigest() == wheel.sha256, (
                f"{file.name} is not the one that is known"
            )
            with zipfile.ZipFile(file) as packed:
                packed.extractall(Path(new) / "source")
            try:
                (Path(new) / "source").rename(folder)
            except OSError:  # another worker was faster
                assert folder.is_dir()
    return folder


def sglang_source(cache: pytest.Cache) -> Path:
    """Return the folder with the source of the SGLang that a real trace was recorded from."""
    return published_source(cache, SGLANG_0_5_14)


def _download(folder: Path, requirement: str) -> Path:
    done = subprocess.run([*_PIP, "--dest", folder, requirement], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        why = f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    (wheel,) = folder.glob("*.whl")
    return wheel
