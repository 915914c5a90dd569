"""What every backend is asked about: this GPU, this model, these packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.document import HeadSizes
    from stepscope.probe.source.files import ProcessFiles
    from stepscope.probe.source.program import Program


@dataclass(frozen=True, slots=True)
class Case:
    """The surroundings of a backend."""

    program: Program
    files: ProcessFiles
    folders: Mapping[str, str]
    """Package → its folder."""
    capability: tuple[int, int] | None
    """Compute capability of the first GPU."""
    model: HeadSizes | None
    chosen: frozenset[str]
    """Backends that the command line names."""

    @property
    def sizes(self) -> dict[str, int]:
        """The model's head sizes by the names that configs and checks use."""
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {} if self.model is None else {name: getattr(self.model, name) for name in names}

    def is_chosen(self, name: str) -> bool | None:
        """Tell whether the command line names a backend; None: it names none."""
        return name in self.chosen if self.chosen else None

    @property
    def gpu(self) -> str:
        """The GPU's compute capability, for people."""
        return "an unknown GPU" if self.capability is None else f"SM{self.capability[0]}{self.capability[1]}"
