"""The batch is padded to 16 requests, and the padding does the work of real ones.

Graphs are captured for a few sizes and the next larger one runs. Padded rows hold the tokens of earlier requests,
so that the router sends them to experts that no live token needs, and attention reads as much for them
(sglang#5557, vllm#46428).
"""

from dataclasses import replace

from stepscope.lab.slowdowns import Slowdown

SLOWDOWN = Slowdown(rule="padding", apply=lambda parts: replace(parts, bucket=16))
