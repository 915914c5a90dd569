"""Bytes that a rank of a group sends in a collective.

Least bytes of data of S bytes in a group of n: 2(n − 1)/n · S for an all-reduce, (n − 1)/n · S for an all-gather, a
reduce-scatter or an all-to-all, S being the whole that is gathered, scattered or dealt out (R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19 (1), 2005). A switch that reduces
would save up to half of the all-reduce.
"""

from __future__ import annotations


def all_reduce_sends(ranks: int, size: float) -> float:
    """Return the bytes that a rank sends in an all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size


def share_out_sends(ranks: int, size: float) -> float:
    """Return the bytes that a rank sends when `size` bytes in all are gathered, scattered or dealt out."""
    return (ranks - 1) / ranks * size
