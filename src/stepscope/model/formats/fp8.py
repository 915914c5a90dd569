"""FP8 (e4m3) weights: a scale for a block, for an output channel, or for the whole."""

from __future__ import annotations

from math import ceil

from stepscope.model.formats.stored import Shape, Stored, WeightFormat

_E4M3 = "Float8_e4m3fn"


def fp8_block(rows: int = 128, columns: int = 128) -> WeightFormat:
    """Return DeepSeek's: a float32 scale for each block of weights (`weight_block_size`); inputs are scaled by 128."""

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        *outer, height, width = shape
        scales = (*outer, ceil(height / rows), ceil(width / columns))
        return Stored(name, shape, _E4M3), Stored(f"{name}_scale_inv", scales, "Float")

    name = "fp8" if (rows, columns) == (128, 128) else f"fp8-{rows}x{columns}"
    return WeightFormat(name, 8 + 32 / (rows * columns), _E4M3, split)


def _channel(name: str, shape: Shape) -> tuple[Stored, ...]:
    return Stored(name, shape, _E4M3), Stored(f"{name}_scale", (*shape[:-1], 1), "Float")


def _tensor(name: str, shape: Shape) -> tuple[Stored, ...]:
    return (
        Stored(name, shape, _E4M3),
        Stored(f"{name}_scale", shape[:-2], "Float"),
        Stored(f"{name}_input_scale", shape[:-2], "Float"),
    )


FP8 = fp8_block()
FP8_CHANNEL = WeightFormat("fp8-channel", 8, _E4M3, _channel)
"""compressed-tensors' and FBGEMM's: a float32 scale for each output channel; inputs are scaled by token."""
FP8_TENSOR = WeightFormat("fp8-tensor", 8, _E4M3, _tensor)
"""ModelOpt's: float32 scales for the whole weight and for its input."""
