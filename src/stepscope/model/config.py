"""Models by name: presets, and `config.json` files as Hugging Face writes them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UsageError
from stepscope.model.families import read_config
from stepscope.model.json_file import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.model.spec import ModelSpec

    Config = Mapping[str, Any]


def preset_names() -> list[str]:
    """Return the names that `load_model` knows."""
    return sorted(entry.name.removesuffix(".json") for entry in _presets().iterdir() if entry.name.endswith(".json"))


def load_model(name: str) -> ModelSpec:
    """Return a model by its preset's name, or from a `config.json` or the folder that holds it.

    Raises:
        UsageError: there is neither such a preset nor such a file, or the file is no config of a kind that is modelled.
    """
    config = load_config(name)
    try:
        return read_config(config)
    except UsageError as error:
        raise UsageError(f"--model {name}: {error}") from error


def load_config(name: str) -> Config:
    """Return the config that `load_model` reads.

    Raises:
        UsageError: there is neither such a preset nor such a file, or the file holds no JSON object.
    """
    if name in preset_names():
        config: Config = msgspec.json.decode((_presets() / f"{name}.json").read_bytes())
        return config
    path = config_path(name)
    if path is None:
        raise UsageError(f"--model {name}: neither a config.json nor a known model ({', '.join(preset_names())})")
    return read_object(path, f"--model {name}")


def config_path(name: str) -> Path | None:
    """Return the file that a path or a folder names; None: there is none.

    Raises:
        UsageError: it cannot be looked at.
    """
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
        return path if path.is_file() else None
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {name}: cannot be read ({error})") from error


def _presets() -> resources.abc.Traversable:
    return resources.files("stepscope.model") / "presets"
