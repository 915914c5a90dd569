"""INT4 weights, eight in an int32, whose groups along the input share a scale. Inputs stay 16 bits."""

from __future__ import annotations

from math import ceil

from stepscope.model.formats.stored import Shape, Stored, WeightFormat

GROUP = 128
"""Weights of a group in most published checkpoints."""


def _groups(columns: int, group: int | None) -> int:
    return 1 if group is None else ceil(columns / group)


def _named(kind: str, group: int | None) -> str:
    if group == GROUP:
        return kind
    return f"{kind}-row" if group is None else f"{kind}-g{group}"


def awq(group: int | None = GROUP) -> WeightFormat:
    """Return AWQ's: input by output, zero points packed as the weights are; None: a group is a whole input."""

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        *outer, rows, columns = shape
        groups = _groups(columns, group)
        return (
            Stored(f"{name}.qweight", (*outer, columns, rows // 8), "Int"),
            Stored(f"{name}.qzeros", (*outer, groups, rows // 8), "Int"),
            Stored(f"{name}.scales", (*outer, groups, rows), "Half"),
        )

    return WeightFormat(_named("int4-awq", group), 4 + (20 / group if group else 0), "BFloat16", split)


def gptq(group: int | None = GROUP) -> WeightFormat:
    """Return GPTQ's: as AWQ's, but packed along the input, and with the group of each input channel."""

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        *outer, rows, columns = shape
        groups = _groups(columns, group)
        return (
            Stored(f"{name}.qweight", (*outer, columns // 8, rows), "Int"),
            Stored(f"{name}.qzeros", (*outer, groups, rows // 8), "Int"),
            Stored(f"{name}.scales", (*outer, groups, rows), "Half"),
            Stored(f"{name}.g_idx", (*outer, columns), "Int"),
        )

    return WeightFormat(_named("int4-gptq", group), 4 + (20 / group if group else 0), "BFloat16", split)


def packed(group: int | None = GROUP) -> WeightFormat:
    """Return compressed-tensors' `pack-quantized`, symmetric: output by input, no zero points (Kimi-K2-Thinking)."""

    def split(name: str, shape: Shape) -> tuple[Stored, ...]:
        *outer, rows, columns = shape
        return (
            Stored(f"{name}_packed", (*outer, rows, columns // 8), "Int"),
            Stored(f"{name}_scale", (*outer, rows, _groups(columns, group)), "BFloat16"),
            Stored(f"{name}_shape", (*outer, 2), "Long"),
        )

    return WeightFormat(_named("int4-packed", group), 4 + (16 / group if group else 0), "BFloat16", split)
