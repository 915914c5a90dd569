"""MLA decode attention over a paged FP8 KV pool, read as it is stored (extra ``gpu``: torch and Triton)."""

from stepscope.paged_mla.copies import cast, gather_cast
from stepscope.paged_mla.decode import mla_decode
from stepscope.paged_mla.plan import MlaPlan, make_plan

__all__ = ["MlaPlan", "cast", "gather_cast", "make_plan", "mla_decode"]
