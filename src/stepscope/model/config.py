"""Models by name: presets, and `config.json` files as Hugging Face writes them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UsageError
from stepscope.model.families import read_config

if TYPE_CHECKING:
    from stepscope.model.spec import ModelSpec

_MOST_BYTES = 16 << 20
"""Configs have some kB; those of quantised models that name every layer, some MB."""


def preset_names() -> list[str]:
    """Return the names that `load_model` knows."""
    return sorted(entry.name.removesuffix(".json") for entry in _presets().iterdir() if entry.name.endswith(".json"))


def load_model(name: str) -> ModelSpec:
    """Return a model by its preset's name, or from a `config.json` or the folder that holds it.

    Raises:
        UsageError: there is neither such a preset nor such a file, or the file is no config of a kind that is modelled.
    """
    if name in preset_names():
        return read_config(msgspec.json.decode((_presets() / f"{name}.json").read_bytes()))
    text = _read(name)
    if text is None:
        raise UsageError(f"--model {name}: neither a config.json nor a known model ({', '.join(preset_names())})")
    try:
        return read_config(msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, UsageError) as error:
        raise UsageError(f"--model {name}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"--model {name}: its objects are nested too deeply for a config") from error


def _read(name: str) -> bytes | None:
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {name}: cannot be read ({error})") from error
    if len(text) > _MOST_BYTES:
        raise UsageError(f"--model {name}: is larger than any config, {_MOST_BYTES >> 20} MB")
    return text


def _presets() -> resources.abc.Traversable:
    return resources.files("stepscope.model") / "presets"
