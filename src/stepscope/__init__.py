"""stepscope: what slows an LLM's inference step, and what fixing it would really gain."""

from stepscope.version import __version__

__all__ = ["__version__"]
