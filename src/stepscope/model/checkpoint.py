"""A model as it lies on a disk or is known by name: its config, and what it says of its weights."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from stepscope.model.config import config_path, load_config, load_model, preset_names
from stepscope.model.json_file import read_object
from stepscope.model.quantization import Quantization, read_quantization

if TYPE_CHECKING:
    from stepscope.model.spec import ModelSpec


class Checkpoint(NamedTuple):
    """A model and how its weights are stored."""

    name: str
    """A preset's name, or the path that was given."""
    source: str
    """`preset`, or the path of the `config.json`."""
    spec: ModelSpec
    quantization: Quantization | None
    """None: the config says nothing of it."""
    dtype: str | None
    """Type it was trained in, as its config calls it."""


def open_checkpoint(name: str) -> Checkpoint:
    """Return the model of a preset's name, or of a `config.json` or the folder that holds it.

    Raises:
        UsageError: there is no such model, or its config or the `hf_quant_config.json` beside it is none.
    """
    spec, config = load_model(name), load_config(name)
    path = None if name in preset_names() else config_path(name)
    beside = path and path.with_name("hf_quant_config.json")
    sidecar = read_object(beside, f"--model {name}: {beside.name}") if beside and beside.is_file() else None
    dtype = config.get("dtype") or config.get("torch_dtype")
    return Checkpoint(
        name=name,
        source=str(path) if path else "preset",
        spec=spec,
        quantization=read_quantization(spec, config, sidecar),
        dtype=dtype if isinstance(dtype, str) else None,
    )


def find_preset(model_path: str) -> str | None:
    """Return the preset of a name on a hub; None: it is not known."""
    text = (resources.files("stepscope.model") / "hub_names.toml").read_text()
    names: dict[str, list[str]] = tomllib.loads(text)
    wanted = model_path.casefold()
    found = (preset for preset, known in names.items() if wanted in {name.casefold() for name in known})
    preset = next(found, None)
    return preset if preset in preset_names() else None
