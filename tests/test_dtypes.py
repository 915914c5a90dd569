"""Recorded types, torch's names of them, and their sizes."""

from __future__ import annotations

import pytest

from stepscope.dtypes import is_floating, item_bytes, torch_name


@pytest.mark.parametrize(
    ("recorded", "name", "size"),
    [
        ("float", "Float", 4),
        ("double", "Double", 8),
        ("long int", "Long", 8),
        ("long", "Long", 8),
        ("int", "Int", 4),
        ("short int", "Short", 2),
        ("unsigned char", "Byte", 1),
        ("signed char", "Char", 1),
        ("bool", "Bool", 1),
        ("c10::BFloat16", "BFloat16", 2),
        ("c10::Half", "Half", 2),
        ("at::Half", "Half", 2),
        ("c10::Float8_e4m3fn", "Float8_e4m3fn", 1),
        ("c10::Float8_e5m2", "Float8_e5m2", 1),
        ("c10::Float8_e4m3fnuz", "Float8_e4m3fnuz", 1),
    ],
)
def test_recorded_types_have_torchs_name_and_size(recorded: str, name: str, size: int) -> None:
    assert torch_name(recorded) == name
    assert item_bytes(name) == size


@pytest.mark.parametrize("recorded", ["Scalar", "ScalarList", "TensorList", "", "GenericList", "c10::Unheard"])
def test_what_is_no_tensors_type_has_no_name(recorded: str) -> None:
    assert torch_name(recorded) is None


def test_real_numbers_are_told_from_indices_and_masks() -> None:
    assert all(map(is_floating, ["Float", "Half", "BFloat16", "Double", "Float8_e4m3fn"]))
    assert not any(map(is_floating, ["Long", "Int", "Short", "Byte", "Char", "Bool"]))
