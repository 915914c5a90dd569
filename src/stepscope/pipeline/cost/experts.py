"""How many experts a batch of tokens is sent to."""

from __future__ import annotations


def expected_experts(routed: int, per_token: int, tokens: int) -> float:
    """Return how many different experts `tokens` tokens are expected to hit, each routed at random.

    A token misses a given expert with probability 1 − k/E, all of them with (1 − k/E)ⁿ.
    """
    return routed * (1 - (1 - per_token / routed) ** tokens)
