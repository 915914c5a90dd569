"""stepscope: what slows an LLM's inference step, and what fixing it would really gain.

`load`, `diagnose`, `compare`, `floor`, `ops`, `query`, `what_if` and `profile` are imported when first used, so that
one half of the package loads nothing of the other; torch is imported only when `profile` begins.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.version import __version__

if TYPE_CHECKING:
    from stepscope.capture.torch_profile import profile
    from stepscope.comparison import compare
    from stepscope.pipeline import diagnose, floor, ops, query, what_if
    from stepscope.pipeline.load import load

_HOMES = {
    "compare": "stepscope.comparison",
    "diagnose": "stepscope.pipeline",
    "floor": "stepscope.pipeline",
    "load": "stepscope.pipeline.load",
    "ops": "stepscope.pipeline",
    "profile": "stepscope.capture.torch_profile",
    "query": "stepscope.pipeline",
    "what_if": "stepscope.pipeline",
}

__all__ = ["__version__", "compare", "diagnose", "floor", "load", "ops", "profile", "query", "what_if"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- what a module holds
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
