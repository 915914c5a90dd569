"""How weights are stored: the tensors that a format makes of one weight, with their scales, and the bytes they take.

One family of formats a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.model.formats import int4
from stepscope.model.formats.fp4 import MXFP4, NVFP4, NVFP4_WEIGHT_ONLY
from stepscope.model.formats.fp8 import FP8, FP8_CHANNEL, FP8_TENSOR, fp8_block
from stepscope.model.formats.gguf import gguf, gguf_types, main_type
from stepscope.model.formats.stored import BF16, FP16, Stored, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BF16",
    "FP8",
    "FP8_CHANNEL",
    "FP8_TENSOR",
    "FP16",
    "MXFP4",
    "NVFP4",
    "NVFP4_WEIGHT_ONLY",
    "Stored",
    "WeightFormat",
    "find_format",
    "format_names",
    "fp8_block",
    "gguf",
    "int4",
]

_GGUF = "gguf:"
_FORMATS: Mapping[str, WeightFormat] = {
    known.name: known
    for known in (
        BF16,
        FP16,
        FP8,
        FP8_CHANNEL,
        FP8_TENSOR,
        NVFP4,
        NVFP4_WEIGHT_ONLY,
        MXFP4,
        int4.awq(),
        int4.gptq(),
        int4.packed(),
    )
}


def format_names() -> list[str]:
    """Return the names that `find_format` takes."""
    return [*_FORMATS, *(f"{_GGUF}{kind}" for kind in gguf_types())]


def find_format(name: str) -> WeightFormat:
    """Return a format by its name, as `--weights` takes it.

    Raises:
        UsageError: there is none of that name, or it names a GGUF file in which several types stand.
    """
    if not name.startswith(_GGUF):
        if name in _FORMATS:
            return _FORMATS[name]
        raise UsageError(f"--weights {name}: no such format; known are {', '.join(_FORMATS)} and {_GGUF}TYPE")
    kind = name.removeprefix(_GGUF).upper()
    if kind in gguf_types():
        return gguf(kind)
    mostly = main_type(kind)
    if mostly is not None:
        raise UsageError(f"--weights {name}: such a file mixes types; most of its weights are {_GGUF}{mostly}")
    raise UsageError(f"--weights {name}: no such GGUF type; known are {', '.join(gguf_types())}")
