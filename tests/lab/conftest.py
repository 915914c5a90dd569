"""Without torch and Triton, nothing here is collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None or find_spec("triton") is None else []
