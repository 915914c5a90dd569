"""What is told of a run: the same options in every function and command, refused before any file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import stepscope
from stepscope.errors import UsageError
from stepscope.pipeline.facts import Options

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING = "/no/such/trace.json"
DIAGNOSE, WHAT_IF, COMPARE, FLOOR = (
    lambda **options: stepscope.diagnose([MISSING], **options),
    lambda **options: stepscope.what_if(MISSING, remove=["*"], **options),
    lambda **options: stepscope.compare(MISSING, MISSING, **options),
    lambda **options: stepscope.floor(gpu="h200", traces=[MISSING], **options),
)


@pytest.mark.parametrize("function", [DIAGNOSE, WHAT_IF, COMPARE])
def test_every_option_is_taken(function: Callable[..., Any]) -> None:
    """All as if they were not given, so that the path is what is wrong."""
    nothing: dict[str, Any] = dict.fromkeys(["model", "server_info", "tp", "ep", "dp", "context", "gpu"])
    nothing |= {"sources": (), "internal": (), "listener": None, "cache": None}
    assert Options.__optional_keys__ == nothing.keys() - {"listener", "cache"}
    with pytest.raises(UsageError, match="no such file"):
        function(**nothing)


@pytest.mark.parametrize(
    ("function", "option"),
    [
        *((function, name) for function in (DIAGNOSE, WHAT_IF, COMPARE) for name in ("modle", "weights", "kv_dtype")),
        (COMPARE, "capture_trace"),
        (FLOOR, "sources"),
        (FLOOR, "modle"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_before_a_file_is_read(
    function: Callable[..., Any], option: str
) -> None:
    with pytest.raises(TypeError, match=option):
        function(**{"model": "glm-5", option: "fp8"})


@pytest.mark.parametrize("function", [DIAGNOSE, WHAT_IF, COMPARE])
@pytest.mark.parametrize(
    ("option", "value"),
    [("model", "nope"), ("server_info", "/no/file"), ("context", 0), ("gpu", "nope"), ("sources", ["/no/folder"])],
)
def test_a_wrong_value_is_refused_before_a_file_is_read(
    function: Callable[..., Any], option: str, value: object
) -> None:
    with pytest.raises(UsageError, match=f"^--{option.removesuffix('s').replace('_', '-')} "):
        function(**{option: value})


@pytest.mark.parametrize("command", ["diagnose", "what-if", "compare"])
def test_the_command_line_takes_the_same(command: str, run: Callable[..., tuple[int, str, str]]) -> None:
    """Except for packages that are not yours, which only Python names."""
    listed = run(command, "--help")[1]
    flags = {f"--{name.removesuffix('s').replace('_', '-')}" for name in Options.__optional_keys__ - {"internal"}}
    assert {flag for flag in flags if f" {flag} " in listed} == flags
