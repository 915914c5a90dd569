"""Which class a kernel's name puts it in: the first pattern that matches."""

from __future__ import annotations

import re
import time

import pytest
from tests import kernel_names

from stepscope.kernel_name import without_arguments
from stepscope.pipeline.attribute.kernel_class import UNCLASSIFIED, kernel_class, patterns

CONTRACT = {
    *("attention", "gemm", "moe-gemm", "routing", "norm", "rope", "activation", "quantise", "cast", "copy", "fill"),
    *("gather", "elementwise", "reduction", "sampling", "collective", "memcpy", "memset", "unclassified"),
}
NAMES = [(known, name) for known, names in kernel_names.OF_CLASS.items() for name in names]


@pytest.mark.parametrize("number", range(len(patterns())), ids=lambda number: patterns()[number].example[:40])
def test_the_first_pattern_that_an_example_matches_is_its_own(number: int) -> None:
    example = without_arguments(patterns()[number].example)
    matching = [place for place, p in enumerate(patterns()) if re.search(p.pattern, example, re.IGNORECASE)]
    assert matching[0] == number
    assert kernel_class("kernel", patterns()[number].example) == patterns()[number].kernel_class


def test_all_classes_are_the_contracts() -> None:
    assert {pattern.kernel_class for pattern in patterns()} <= CONTRACT
    assert UNCLASSIFIED in CONTRACT


@pytest.mark.parametrize(("expected", "name"), NAMES)
def test_real_names(expected: str, name: str) -> None:
    assert kernel_class("kernel", name) == expected


def test_there_are_real_names_of_every_class_that_names_tell() -> None:
    assert set(kernel_names.OF_CLASS) == CONTRACT - {"memcpy", "memset", UNCLASSIFIED}
    assert len({name for _, name in NAMES}) >= 120


@pytest.mark.parametrize("name", ["kernel_0", "", "void my::thing<int>(gemm_params)"])
def test_what_no_pattern_knows_is_unclassified_whatever_its_arguments_are_called(name: str) -> None:
    assert kernel_class("kernel", name) == UNCLASSIFIED


@pytest.mark.parametrize(
    "part", ["a", "_", "triton_poi_fused_", "cat_", "copy__", "cub", "thrust::", "direct_copy_kernel", "(", "<", "1"]
)
def test_a_name_of_a_megabyte_is_classified_at_once(part: str) -> None:
    begin = time.perf_counter()
    kernel_class("kernel", part * (1_000_000 // len(part)))
    assert time.perf_counter() - begin < 1


def test_a_name_of_digits_takes_no_time_that_grows_with_its_square() -> None:
    begin = time.perf_counter()
    for digit in "0123456789" * 5:
        assert kernel_class("kernel", digit * 4096) == UNCLASSIFIED
    assert time.perf_counter() - begin < 2.5  # a fifth of it


@pytest.mark.parametrize("kind", ["memcpy", "memset"])
def test_copies_and_sets_are_of_their_kind_whatever_they_are_called(kind: str) -> None:
    assert kernel_class(kind, "Memcpy DtoD (Device -> Device) of a gemm") == kind
