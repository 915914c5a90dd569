"""How a model is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class Parallel:
    """The ranks of one replica's stage, as SGLang counts them: `tp` ranks in all, shared out differently by part.

    Attention is split over `tp / attention_dp` ranks, and each of the `attention_dp` groups serves its own requests.
    Experts are shared out over `ep` ranks, and each expert split over `tp / ep`. The other `_dp` are the groups of
    which each holds the whole of a part.

    Raises:
        UsageError: a group does not divide the ranks.
    """

    tp: int = 1
    attention_dp: int = 1
    ep: int = 1
    pp: int = 1
    dense_dp: int = 1
    """Of dense MLPs."""
    shared_dp: int = 1
    """Of shared experts."""
    lm_head_dp: int = 1

    def __post_init__(self) -> None:
        for option, groups in (("--dp", self.attention_dp), ("--ep", self.ep)):
            if self.tp % groups:
                raise UsageError(f"{option} {groups}: the {self.tp} ranks of --tp do not divide by it")
        for groups in (self.dense_dp, self.shared_dp, self.lm_head_dp):
            if self.tp % groups:
                raise UsageError(f"{self.tp} ranks do not divide into {groups} groups")

    @property
    def attention_tp(self) -> int:
        """Ranks that split the heads of one request's attention, and the embedding."""
        return self.tp // self.attention_dp

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return self.tp // self.ep

    @property
    def dense_tp(self) -> int:
        """Ranks that split a dense MLP."""
        return self.tp // self.dense_dp

    @property
    def shared_tp(self) -> int:
        """Ranks that split the shared experts."""
        return self.tp // self.shared_dp

    @property
    def lm_head_tp(self) -> int:
        """Ranks that split the LM head."""
        return self.tp // self.lm_head_dp
