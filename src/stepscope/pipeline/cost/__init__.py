"""What work costs: bytes, operations, and the least time they take on a GPU."""

from stepscope.pipeline.cost.roofline import Bound, Ceilings
from stepscope.pipeline.cost.transfer import Transfer
from stepscope.pipeline.cost.work import Work

__all__ = ["Bound", "Ceilings", "Transfer", "Work"]
