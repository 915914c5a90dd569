"""What the rules are known to get wrong: misses and false alarms of the catalogue, each with its cause."""

from __future__ import annotations

ONE_RANK = (
    "it waits in every call for the rank that is late, and alone cannot tell that from a slow exchange; the finding"
    " says so, with low confidence"
)

KNOWN: dict[tuple[str, str], str] = {
    ("lab, ranks-late1-1x1024-pool495552, graph, rank 0 alone", "slow-collective"): ONE_RANK,
    ("lab, ranks-late1-1x1024-pool495552, eager, rank 0 alone", "slow-collective"): ONE_RANK,
    ("published, flashinfer#1753, FP8, datasheet's rate", "low-precision-slower"): (
        "good kernels are held to reach 0.6 of the datasheet's rate where the GPU's own was not measured; at 0.72 it"
        " would be found, which no measurement at hand supports"
    ),
}
"""By case and rule."""
