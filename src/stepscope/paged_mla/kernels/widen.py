"""e4m3 to fp16, exactly, inside Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(values, FORM: tl.constexpr):
    """A tile of the pool as a matrix operand: e4m3 as fp16 (every e4m3 number is one), bf16 unchanged.

    ``bytes`` is e4m3 for chips without the conversion. An e4m3 number's bits, moved up by 7 with the sign moved to
    the top, are the fp16 bits of the number times 2^-8 (the exponent biases are 7 and 15), subnormals included.
    """
    if FORM == "bytes":
        bits = values.to(tl.uint16)
        half = ((bits & 0x7F) << 7) | ((bits & 0x80) << 8)
        number = half.to(tl.float16, bitcast=True) * 256.0
        wide = tl.where((bits & 0x7F) == 0x7F, float("nan"), number).to(tl.float16)
    elif FORM == "e4m3":
        wide = values.to(tl.float16)
    else:
        wide = values
    return wide
