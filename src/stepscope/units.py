"""The only place that formats times, bytes, rates, shares and runs of numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_OPERATION_UNITS = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3))


def time(us: float) -> str:
    """Format a duration given in µs: ``848.5 µs``, ``66.19 ms``, ``1.42 s``."""
    if us < 0:
        return ("-" if us <= -0.05 else "") + time(-us)
    if us >= 999_995:  # which rounds to 1000.00 ms
        return f"{us / 1e6:.2f} s"
    if us >= 999.95:
        return f"{us / 1e3:.2f} ms"
    return f"{us:.1f} µs"


def change(us: float) -> str:
    """Format a difference given in µs, with its sign: ``-66.44 ms``, ``+3.18 ms``, ``0.0 µs``."""
    return f"{'+' if us >= 0.05 else ''}{time(us)}"


def size(count: float) -> str:
    """Format bytes in decimal units (1 GB = 1e9 bytes), as datasheets do."""
    for unit, scale in _BYTE_UNITS:
        if count >= scale * 0.99995:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def operations(count: float) -> str:
    """Format a number of floating-point operations in decimal units: ``12.3 GFLOP``."""
    for unit, scale in _OPERATION_UNITS:
        if count >= scale * 0.99995:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} FLOP"


def rate(gb_per_s: float) -> str:
    """Format a transfer rate given in 1e9 bytes/s."""
    if gb_per_s >= 1e3:
        return f"{gb_per_s / 1e3:.2f} TB/s"
    return f"{gb_per_s:.0f} GB/s"


def arithmetic(tflops: float) -> str:
    """Format a rate of arithmetic given in 1e12 operations/s."""
    return f"{tflops:,.0f} TFLOPS"


def share(fraction: float) -> str:
    """Format a fraction as a percentage: one decimal, none from 99.95% up, ``<0.1%`` below."""
    if 0 < fraction < 0.0005:
        return "<0.1%"
    text = f"{fraction * 100:.1f}"
    return f"{text.removesuffix('.0')}%"


def count(value: float) -> str:
    """Format a number of things with thousands separators and no needless decimals; what is rare with two digits."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def calls(value: float) -> str:
    """Format a number of calls: ``1 call``, ``78 calls``."""
    return f"{count(value)} call{'' if value == 1 else 's'}"


def number(value: float) -> str:
    """Format a number of elements: in full below a million, else in millions, ``285.4 M``."""
    return f"{value / 1e6:,.1f} M" if value >= 1e6 else f"{value:,.0f}"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with each run of them as its ends: `0–2, 5`."""
    ends: list[tuple[int, int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1] = (ends[-1][0], number)
        else:
            ends.append((number, number))
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in ends)
