"""FP4 (e2m1) weights: NVIDIA's and the OCP's microscaling."""

from __future__ import annotations

from stepscope.model.formats.stored import Shape, Stored, WeightFormat


def _nvfp4(name: str, shape: Shape) -> tuple[Stored, ...]:
    """ModelOpt's: two values a byte, an e4m3 scale for 16, float32 scales for the whole and for its input."""
    *outer, rows, columns = shape
    return (
        Stored(name, (*outer, rows, columns // 2), "Byte"),
        Stored(f"{name}_scale", (*outer, rows, columns // 16), "Float8_e4m3fn"),
        Stored(f"{name}_scale_2", tuple(outer), "Float"),
        Stored(f"{name}_input_scale", tuple(outer), "Float"),
    )


def _mxfp4(name: str, shape: Shape) -> tuple[Stored, ...]:
    """gpt-oss': blocks of 32 values in 16 bytes, and their exponent (e8m0) in one."""
    *outer, columns = shape
    blocks = columns // 32
    return (
        Stored(f"{name}_blocks", (*outer, blocks, 16), "Byte"),
        Stored(f"{name}_scales", (*outer, blocks), "Byte"),
    )


NVFP4 = WeightFormat("nvfp4", 4.5, "Float4", _nvfp4)
NVFP4_WEIGHT_ONLY = WeightFormat("nvfp4-w4a16", 4.5, "BFloat16", _nvfp4)
"""The same weights with inputs that stay 16 bits."""
MXFP4 = WeightFormat("mxfp4", 4.25, "BFloat16", _mxfp4)
"""As gpt-oss publishes it: the weights are narrow, the inputs 16 bits."""
