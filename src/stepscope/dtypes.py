"""Data types: what traces call them, what torch calls them, and how many bytes they take."""

from __future__ import annotations

_TORCH_NAMES = {
    "float": "Float",
    "double": "Double",
    "int": "Int",
    "long": "Long",
    "long int": "Long",
    "short": "Short",
    "short int": "Short",
    "unsigned char": "Byte",
    "signed char": "Char",
    "bool": "Bool",
}
_BYTES = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "BFloat16": 2,
    "Half": 2,
    "Short": 2,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1,
    "Float4_e2m1fn_x2": 1,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
}


def torch_name(recorded: str) -> str | None:
    """Return torch's name, without prefix, of a recorded type; None where it is no tensor's type."""
    name = recorded.removeprefix("c10::").removeprefix("at::")
    name = _TORCH_NAMES.get(name, name)
    return name if name in _BYTES else None


def is_floating(name: str) -> bool:
    """Tell whether a type named as torch names it holds real numbers, as weights and activations do."""
    return name.startswith(("Float", "BFloat", "Half", "Double"))


def item_bytes(name: str) -> int:
    """Return the bytes of one element of a type named as torch names it.

    Raises:
        KeyError: it is not one of the names that `torch_name` returns.
    """
    return _BYTES[name]
