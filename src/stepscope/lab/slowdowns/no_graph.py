"""The step is launched kernel by kernel instead of replayed as a CUDA graph.

At a small batch the GPU finishes each kernel before the host has launched the next (vllm-omni#6516, gpt-fast).
"""

from dataclasses import replace

from stepscope.lab.slowdowns import Slowdown

SLOWDOWN = Slowdown(
    rule="launch-bound", apply=lambda parts: replace(parts, graph=False), modes=("eager",), twin="graph"
)
