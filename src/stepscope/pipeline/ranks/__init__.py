"""The collectives of several ranks side by side: who is late, who waits, how long the transfer itself takes.

Of each rank a small table is kept (`calls.py`), so that memory grows with one rank at a time. Traces that are ranks of
one run are told by their names (`sets.py`); which call of one rank is which of another, by name, order, and that they
end together (`align.py`); what each rank waits for follows from how long its kernels take (`skew.py`).
"""

from __future__ import annotations

from stepscope.pipeline.ranks.align import Together, align
from stepscope.pipeline.ranks.calls import RankCalls
from stepscope.pipeline.ranks.messages import ALL_TO_ALL, Message, collectives, message_of, sends
from stepscope.pipeline.ranks.sets import sets_of
from stepscope.pipeline.ranks.skew import Arrive, Skew

__all__ = [
    "ALL_TO_ALL",
    "Arrive",
    "Message",
    "RankCalls",
    "Skew",
    "Together",
    "align",
    "collectives",
    "message_of",
    "sends",
    "sets_of",
]
