"""`stepscope calibrate` where its part is not installed; `tests/lab` has the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.processes import is_one_sentence

from stepscope.cli.calibrate import calibrate
from stepscope.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("there", "missing"), [({"triton"}, "torch"), ({"torch"}, "triton"), (set(), "torch and triton")]
)
def test_without_its_part_it_says_what_installs_it(
    there: set[str], missing: str, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setitem(calibrate.__globals__, "find_spec", lambda name: object() if name in there else None)
    code, out, err = run("calibrate")
    assert (code, out) == (ExitCode.PART_NOT_INSTALLED, "")
    assert is_one_sentence(err)
    assert f"needs {missing}: pip install 'stepscope[gpu]'" in err
