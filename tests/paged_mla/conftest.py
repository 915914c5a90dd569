"""Without a GPU, kernels run in Triton's interpreter; without torch, nothing here is collected."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.paged_mla.builders import Problem

collect_ignore_glob: list[str] = []
if find_spec("torch") is None or find_spec("triton") is None:
    collect_ignore_glob.append("test_*.py")
else:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported


# Triton 3.6's interpreter converts one-element arrays to loop bounds, of which numpy before 2.4 only warns.
_INTERPRETER_WARNING = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(_INTERPRETER_WARNING))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def build(device: torch.device) -> Callable[..., Problem]:
    from tests.paged_mla.builders import build_problem  # noqa: PLC0415 - imports Triton, which must follow the setting above

    def make(**shape: Any) -> Problem:
        return build_problem(device=device, **shape)

    return make
