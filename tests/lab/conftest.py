"""Without a GPU, Triton runs in its interpreter, which it must be told before it is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"]
if find_spec("torch") is not None and find_spec("triton") is not None:
    import torch

    collect_ignore_glob = []
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
