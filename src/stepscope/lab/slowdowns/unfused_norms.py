"""Norms are written out operation by operation: square, mean, root, products and casts, each a kernel of its own.

A fused kernel reads the row once; here it is written and read again at every step between, four norms a layer
(sglang#30815, #31504, vllm#56674).
"""

from dataclasses import replace

from stepscope.lab import plain
from stepscope.lab.slowdowns import Slowdown

SLOWDOWN = Slowdown(
    rule="unfused-elementwise",
    apply=lambda parts: replace(parts, rms_norm=plain.rms_norm, add_rms_norm=plain.add_rms_norm),
)
