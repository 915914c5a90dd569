"""Every buffer of a layer is set to zero before it is filled.

The kernels that follow write each element anyway, so that three small fills a layer do nothing but launch
(sglang#33063, aiter#3615).
"""

from dataclasses import replace

import torch

from stepscope.lab.slowdowns import Slowdown

SLOWDOWN = Slowdown(rule="fill-in-step", apply=lambda parts: replace(parts, new=torch.zeros))
