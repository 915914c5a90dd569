"""Which type is `plan()` told the pool is of: by position or keyword, through attributes, aliases and base classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.probe.backends import Followed, line_of

if TYPE_CHECKING:
    from pathlib import Path

_POSITIONAL = "wrapper.plan(a, b, c, d, heads, 512, 64, 1, False, scale, {q}, {kv})"
_KEYWORD = "wrapper.plan(a, b, c, d, heads, 512, 64, 1, False, scale, q_data_type={q}, kv_data_type={kv})"
_TEXT = """
import torch
from flashinfer import BatchMLAPagedAttentionWrapper

class Updater:
    def __init__(self, model_runner, attn_backend):
        runner = model_runner
        self.data_type = runner.dtype
        self.q_data_type = self.data_type
        self.pool_type = model_runner.kv_cache_dtype
        chosen = self.pool_type
        self.alias = chosen
        self.either = model_runner.kv_cache_dtype if attn_backend.fp8 else model_runner.dtype
        self.borrowed = attn_backend.kv_type

    def update(self, wrapper: BatchMLAPagedAttentionWrapper, scale, heads):
        local = self.data_type
        {call}
"""


def followed(tmp_path: Path, call: str) -> Followed:
    return Followed(tmp_path, "Updater", updater=_TEXT.replace("{call}", call))


@pytest.mark.parametrize("call", [_POSITIONAL, _KEYWORD])
@pytest.mark.parametrize(
    ("given", "expected", "said"),
    [
        ("self.data_type", True, "model_runner.dtype"),
        ("self.q_data_type", True, "model_runner.dtype"),
        ("local", True, "model_runner.dtype"),
        ("torch.bfloat16", True, "torch.bfloat16"),
        ("self.pool_type", False, "model_runner.kv_cache_dtype"),
        ("self.alias", False, "model_runner.kv_cache_dtype"),
        ("torch.float8_e4m3fn", False, "torch.float8_e4m3fn"),
        ("self.either", None, "model_runner.dtype or model_runner.kv_cache_dtype"),
        ("self.borrowed", None, "attn_backend.kv_type"),
        ("getattr(self, scale)", None, "getattr(self, scale)"),
    ],
)
def test_the_type_is_followed_to_where_it_comes_from(
    tmp_path: Path, call: str, given: str, expected: object, said: str
) -> None:
    answer, (site,) = followed(tmp_path, call.format(q="self.q_data_type", kv=given)).plan_dtype()
    assert answer is not None
    assert (answer.answer, site.given) == (expected, said)
    assert site.is_certain is (expected is not None)
    assert site.line == line_of(_TEXT, "{call}")


def test_the_lines_are_those_of_the_two_types(tmp_path: Path) -> None:
    arguments = [*"abcdefghij", "self.q_data_type", "self.pool_type"]
    call = "wrapper.plan(\n" + "".join(f"            {argument},\n" for argument in arguments) + "        )"
    _, (site,) = followed(tmp_path, call).plan_dtype()
    first = line_of(_TEXT, "{call}") + 1 + 10
    assert (site.line, site.end_line) == (first, first + 1)


def test_other_plans_are_passed_over(tmp_path: Path) -> None:
    calls = [
        "self._cached_module.plan(a, b, c, d)",
        "ragged.begin_forward(a, b, heads, 256, q_data_type=self.data_type, kv_data_type=self.data_type)",
        "schedule.plan(self.data_type)",
    ]
    assert followed(tmp_path, "\n        ".join(calls)).plan_dtype() == (None, [])


def test_a_wrapper_known_to_be_another_kind_is_passed_over(tmp_path: Path) -> None:
    text = _TEXT.replace("wrapper: BatchMLAPagedAttentionWrapper", "wrapper: BatchDecodeWithPagedKVCacheWrapper")
    text = text.replace("{call}", _POSITIONAL.format(q="local", kv="local"))
    assert Followed(tmp_path, "Updater", updater=text).plan_dtype() == (None, [])


def test_unpacked_arguments_cannot_be_told(tmp_path: Path) -> None:
    answer, (site,) = followed(tmp_path, "wrapper.plan(a, b, *rest)").plan_dtype()
    assert answer is not None
    assert (answer.answer, site.is_certain) == (None, False)


def test_a_subclass_that_sets_the_attribute_decides_for_the_call_of_its_base(tmp_path: Path) -> None:
    base = """
        class Base:
            def __init__(self, model_runner):
                self.kv_type = model_runner.kv_cache_dtype

            def update(self, wrapper, scale):
                wrapper.plan(1, 2, 3, 4, 5, 512, 64, 1, False, scale, self.kv_type, self.kv_type)  # here
    """
    backend = """
        from engine.base import Base

        class Wrong(Base):
            def __init__(self, model_runner):
                super().__init__(model_runner)
                self.kv_type = model_runner.dtype

        class Right(Base):
            def other(self):
                return 1
    """
    for name, expected in (("Wrong", True), ("Right", False)):
        folder = tmp_path / name
        folder.mkdir()
        answer, (site,) = Followed(folder, name, backend=backend, base=base).plan_dtype()
        assert answer is not None
        assert (answer.answer, site.line) == (expected, line_of(base, "# here"))


def test_a_type_handed_on_by_the_caller_is_the_callers(tmp_path: Path) -> None:
    text = """
        class Updater:
            def __init__(self, model_runner):
                self.data_type = model_runner.dtype

            def update(self, wrapper):
                self._plan(wrapper, self.data_type)

            def _plan(self, wrapper, kind):
                wrapper.plan(1, 2, 3, 4, 5, 512, 64, 1, False, 1.0, kind, kind)
    """
    answer, (site,) = Followed(tmp_path, "Updater", updater=text).plan_dtype()
    assert answer is not None
    assert (answer.answer, site.given) == (True, "model_runner.dtype")


def test_class_constants_and_properties_are_attributes_too(tmp_path: Path) -> None:
    text = """
        import torch

        class Updater:
            constant = torch.bfloat16

            @property
            def kind(self):
                return self.model_runner.kv_cache_dtype

            def one(self, wrapper):
                wrapper.plan(1, 2, 3, 4, 5, 512, 64, 1, False, 1.0, self.constant, self.constant)

            def two(self, wrapper):
                wrapper.plan(1, 2, 3, 4, 5, 512, 64, 1, False, 1.0, self.constant, self.kind)
    """
    answer, sites = Followed(tmp_path, "Updater", updater=text).plan_dtype()
    assert answer is not None
    assert answer.answer is True
    assert answer.reason.endswith("in 1 of its calls")
    assert [site.given for site in sites] == ["torch.bfloat16", "self.model_runner.kv_cache_dtype"]
