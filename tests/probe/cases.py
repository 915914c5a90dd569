"""Packages that tests write or unpack, as a process would have them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from stepscope.document import HeadSizes
from stepscope.probe.case import Case
from stepscope.probe.source.files import ProcessFiles
from stepscope.probe.source.program import Program

if TYPE_CHECKING:
    from pathlib import Path

GLM_5 = HeadSizes(model="glm-5", kv_lora_rank=512, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256)
DEEPSEEK_V3 = HeadSizes(model="v3", kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def case_of(
    folders: dict[str, Path], capability: tuple[int, int] | None = (9, 0), model: HeadSizes | None = GLM_5, *chosen: str
) -> Case:
    """What backends in these folders are asked about."""
    files = ProcessFiles()
    names = {name: str(folder) for name, folder in folders.items()}
    return Case(
        program=Program(files, names),
        files=files,
        folders=names,
        capability=capability,
        model=model,
        chosen=frozenset(chosen),
    )


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """Write modules by their path below a package's folder."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder
