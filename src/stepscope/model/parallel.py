"""How a model is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parallel:
    """The ranks of one replica's stage, as SGLang counts them: `tp` ranks in all, shared out differently by part.

    Attention is split over `tp / attention_dp` ranks, and each of the `attention_dp` groups serves its own requests.
    Experts are shared out over `ep` ranks, and each expert split over `tp / ep`.
    """

    tp: int = 1
    attention_dp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def attention_tp(self) -> int:
        """Ranks that split the heads of one request's attention."""
        return self.tp // self.attention_dp

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return self.tp // self.ep
