"""What tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.samples_of_trouble import pool_cast

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="trace", scope="module")
def trace_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pool_cast().save(tmp_path_factory.mktemp("trace") / "trace.json.gz")
