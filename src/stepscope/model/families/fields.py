"""The fields of a `config.json`, checked as they are read: whoever wrote the file need not be trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000
MOST_WIDTH = 2**24
"""No published model comes near these; sizes above are mistakes, or meant to exhaust memory."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(frozen=True, slots=True)
class Fields:
    """A config over the defaults of its kind."""

    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """What Hugging Face's config class holds where a file does not tell."""
    assumed: list[str] = field(default_factory=list)
    """Sizes that were read and that the file does not tell."""

    def get(self, name: str) -> Any:  # noqa: ANN401 -- what JSON holds
        """Return a field as it stands in the file, else its default, else None."""
        return self.config[name] if name in self.config else self.defaults.get(name)

    def size(self, name: str, most: int = MOST_WIDTH) -> int:
        """Return a number of at least 1; null is as good as absent.

        Raises:
            UsageError: it is missing, or no whole number, or out of range.
        """
        value = self.config.get(name)
        if value is None:
            value = self._assume(name)
        if value is None:
            raise UsageError(f"the config does not tell {name}")
        return _whole(name, value, 1, most)

    def size_or_none(self, name: str, most: int = MOST_WIDTH) -> int | None:
        """Return a number of at least 1, or None: null in the file, or neither there nor among the defaults."""
        value = self.config[name] if name in self.config else self._assume(name)
        return None if value is None else _whole(name, value, 1, most)

    def count(self, name: str, most: int) -> int:
        """Return a number of things of which there may be none."""
        value = self.get(name)
        return 0 if value is None else _whole(name, value, 0, most)

    def flag(self, name: str) -> bool:
        """Return a truth value; None counts as false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"the config's {name} is {short(value)}, neither true nor false")
        return bool(value)

    def window(self) -> int | None:
        """Return `sliding_window`; null, like the 0 that Qwen2-MoE saves, is no window."""
        value = self.get("sliding_window")
        return None if value is None else _whole("sliding_window", value, 0, 2**40) or None

    def names(self, name: str, length: int) -> Sequence[str] | None:
        """Return a list of names, one for each layer, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"the config's {name} is {short(value)}, not a list of names")
        if len(value) != length:
            raise UsageError(f"the config's {name} names {len(value)} layers, but there are {length}")
        return value

    def indices(self, name: str) -> frozenset[int]:
        """Return a list of layers' indices; none where it is absent."""
        value = self.get(name)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or len(value) > MOST_LAYERS:
            raise UsageError(f"the config's {name} is {short(value)}, not a list of layers")
        return frozenset(_whole(name, item, 0, MOST_LAYERS) for item in value)

    def first_told(self, *names: str) -> str:
        """Return the first of several names for the same thing that the file has, else the first of the defaults'."""
        told = [name for name in names if self.config.get(name) is not None]
        known = [name for name in names if self.defaults.get(name) is not None]
        return [*told, *known, *names][0]

    def _assume(self, name: str) -> Any:  # noqa: ANN401 -- what TOML holds
        value = self.defaults.get(name)
        if value is not None:
            self.assumed.append(name)
        return value

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.size("num_hidden_layers", MOST_LAYERS)


def name_of(config: Mapping[str, Any], field_name: str) -> str | None:
    """Return a field that holds a name, such as `model_type`, or the first of a list of names; None if absent.

    Raises:
        UsageError: it is no name; what is no name is not printed as one.
    """
    value = config.get(field_name)
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or value == "":
        return None
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise UsageError(f"the config's {field_name} is {short(value)}, which is no name")
    return value


def short(value: object) -> str:
    """Return a value of the file as it can be shown in a sentence."""
    return _SHORT.repr(value)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"the config's {name} is {short(value)}, not a whole number")
    if not least <= value <= most:
        raise UsageError(f"the config's {name} is {short(value)}, which is not between {least} and {most:,}")
    return value
