"""The whole FP8 pool of a layer is converted to BF16 before attention reads the live rows.

Each layer reads and writes as many bytes as the pool has, whatever the batch and the length are. A server gives most
of its memory to the pool, so that this takes most of the step. Attention kernels that cannot read FP8 have it
(sglang#35291, #35322, #36087). The healthy twin reads the live rows and converts those, so that with many of them it
takes longer than a step of which only the pool's cast is removed.
"""

from dataclasses import replace

from stepscope.lab.attention import full_pool_cast
from stepscope.lab.slowdowns import Slowdown

SLOWDOWN = Slowdown(rule="kv-pool-cast", apply=lambda parts: replace(parts, read_pool=full_pool_cast))
