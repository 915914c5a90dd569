"""Which packages decide how a step runs, and what their source says of itself without being imported."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from stepscope.document import Package

if TYPE_CHECKING:
    from stepscope.probe.source.files import ProcessFiles

DISTRIBUTIONS = (
    *("torch", "triton", "pytorch-triton", "sglang", "sgl-kernel", "vllm", "flashinfer", "flash-mla", "flashmla"),
    *("tokenspeed-flashmla", "tokenspeed-mla", "flash-attn", "aiter", "amd-aiter", "deep-gemm", "transformers"),
    *("nvidia-cuda-runtime", "nvidia-cutlass-dsl", "nvidia-cudnn"),
)
"""What the names of distributions begin with."""
MODULES = ("torch", "triton", "sglang", "vllm", "flashinfer", "flash_mla", "sgl_kernel")
_VERSION_FILES = ("_version.py", "version.py", "__init__.py")
_VERSION_NAMES = {"__version__", "version"}


def packages(distributions: dict[str, str], folders: dict[str, str], files: ProcessFiles) -> list[Package]:
    """Return the installed distributions, and the packages that are imported without one, by name."""
    found = {}
    for module, folder in folders.items():
        name = next((one for one in _names(module) if one in distributions), module.replace("_", "-"))
        found[name] = folder
    return [
        Package(
            name=name,
            version=distributions.get(name),
            source_version=_source_version(found[name], files) if name in found else None,
            path=found.get(name),
        )
        for name in sorted({*distributions, *found})
    ]


def constant(path: str, name: str, files: ProcessFiles) -> str | None:
    """Return a string that a file assigns to a name at its top."""
    source = files.source(path)
    for statement in () if source is None else source.tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        is_named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if is_named and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _names(module: str) -> tuple[str, ...]:
    """Return the distributions that a package may come from."""
    name = module.replace("_", "-")
    return name, f"{name}-python", f"{name}-cpu", f"tokenspeed-{name.replace('-', '')}"


def _source_version(folder: str, files: ProcessFiles) -> str | None:
    for file in _VERSION_FILES:
        for name in sorted(_VERSION_NAMES):
            version = constant(f"{folder}/{file}", name, files)
            if version is not None:
                return version
    return None
