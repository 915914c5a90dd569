"""NVFP4, against values worked out by hand and against torch's own e4m3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.model.nvfp4 import (
    Nvfp4,
    decode_e2m1,
    decode_e4m3,
    dequantise,
    encode_e2m1,
    encode_e4m3,
    quantise,
)

INFINITY = float("inf")


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_e2m1_values() -> None:
    assert decode_e2m1(np.arange(16, dtype=np.uint8)).tolist() == [
        *(0, 0.5, 1, 1.5, 2, 3, 4, 6),
        *(0, -0.5, -1, -1.5, -2, -3, -4, -6),
    ]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        *[(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)],  # ties: the even code
        *[(0.26, 1), (0.74, 1), (1.24, 2), (1.26, 3), (2.51, 5), (3.49, 5), (5.01, 7)],
        *[(6.0, 7), (6.9, 7), (1e30, 7), (-0.25, 8), (-0.3, 9), (-5.0, 14), (-1e30, 15)],
    ],
)
def test_e2m1_rounds_to_nearest_even_and_saturates(value: float, code: int) -> None:
    assert encode_e2m1(f32(value)).tolist() == [code]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x00, 0.0),
        (0x01, 2.0**-9),  # the smallest: 1/8 x 2^-6
        (0x07, 7 * 2.0**-9),  # the largest without a leading one
        (0x08, 2.0**-6),  # the smallest with one
        (0x38, 1.0),  # exponent 7 is the bias
        (0x39, 1.125),
        (0x40, 2.0),
        (0x7E, 448.0),  # 1.75 x 2^8
        (0xB8, -1.0),
        (0xFE, -448.0),
    ],
)
def test_e4m3_both_ways(code: int, value: float) -> None:
    assert decode_e4m3(np.array([code], dtype=np.uint8)).tolist() == [value]
    assert encode_e4m3(f32(value)).tolist() == [code]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1.0625, 0x38),  # halfway from 1 to 1.125: the even mantissa is 1's
        (1.1875, 0x3A),  # halfway from 1.125 to 1.25
        (1.07, 0x39),
        (2.0**-10, 0x00),  # halfway from 0 to the smallest
        (3 * 2.0**-10, 0x02),
        (2.0**-10 * 1.01, 0x01),
        (449.0, 0x7E),
        (1e9, 0x7E),
        (INFINITY, 0x7E),
        (-INFINITY, 0xFE),
        (-0.0, 0x80),
    ],
)
def test_e4m3_rounds_to_nearest_even_and_saturates(value: float, code: int) -> None:
    assert encode_e4m3(f32(value)).tolist() == [code]


def test_e4m3_has_nan_and_no_infinity() -> None:
    decoded = decode_e4m3(np.arange(256, dtype=np.uint8))
    assert np.flatnonzero(np.isnan(decoded)).tolist() == [0x7F, 0xFF]
    assert not np.isinf(decoded).any()
    assert encode_e4m3(f32(float("nan"))).tolist() == [0x7F]


def test_e4m3_is_torchs() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    codes = torch.arange(256).to(torch.uint8)
    assert np.array_equal(
        decode_e4m3(codes.numpy()), codes.view(torch.float8_e4m3fn).to(torch.float32).numpy(), equal_nan=True
    )
    random = np.random.default_rng(5)
    values = (random.standard_normal(200_000) * 10.0 ** random.uniform(-4, 3, 200_000)).astype(np.float32)
    values = np.concatenate([values[np.abs(values) <= 448], f32(0, -0.0, 2.0**-10, 448, -448)])
    ours = encode_e4m3(values)
    assert np.array_equal(ours, torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy())


BLOCK = [6.0, 3.0, -1.5, 0.5, 0.0, 0.24, 0.26, -6.0, 2.5, 3.5, 5.0, 1.0, 2.0, 4.0, -0.5, 0.75]
CODES = [7, 5, 11, 1, 0, 0, 1, 15, 4, 6, 6, 2, 4, 6, 9, 2]


def test_one_block_by_hand() -> None:
    """Largest 2688 = 6 x 448, so that the whole's scale is 1; the block's largest is 6 x 448: its scale is 448."""
    weight = f32(*BLOCK)[None] * 448
    found = quantise(weight)
    assert found.weight_scale_2.shape == ()
    assert found.weight_scale_2 == 1.0
    assert found.weight_scale.tolist() == [[0x7E]]
    low, high = CODES[0::2], CODES[1::2]
    assert found.weight.tolist() == [[a + 16 * b for a, b in zip(low, high, strict=True)]]
    assert found.weight[0, 0] == 0x57  # the even element, 6, in the low nibble; the odd one, 3, in the high
    expected = [6, 3, -1.5, 0.5, 0, 0, 0.5, -6, 2, 4, 4, 1, 2, 4, -0.5, 1]
    assert dequantise(found).tolist() == [[448.0 * value for value in expected]]


def test_the_scale_of_a_block_is_rounded_and_then_used() -> None:
    """Blocks of 2688 and of 6.3: the second has 6.3 / 6 = 1.05, which e4m3 rounds to 1; 6.3 is then 6, 2.4 is 2."""
    weight = np.zeros((1, 32), dtype=np.float32)
    weight[0, 0], weight[0, 16], weight[0, 17] = 2688, 6.3, 2.4
    found = quantise(weight)
    assert found.weight_scale.tolist() == [[0x7E, 0x38]]
    assert dequantise(found)[0, 16:18].tolist() == [6.0, 2.0]


def test_each_expert_has_its_own_scale_of_the_whole() -> None:
    weight = np.stack([np.full((2, 16), 2688.0), np.full((2, 16), 26.88), np.zeros((2, 16))])
    found = quantise(weight)
    assert found.weight_scale_2 == pytest.approx([1.0, 0.01, 0.0])
    assert found.weight_scale[2].tolist() == [[0x38], [0x38]]  # blocks of zeros have 1, as ModelOpt writes them
    assert dequantise(found) == pytest.approx(weight)


def test_a_small_block_beside_a_large_one_is_not_lost() -> None:
    weight = np.zeros((1, 32), dtype=np.float32)
    weight[0, 0], weight[0, 16] = 2688, 6 * 2.0**-11  # its own scale would be 2^-11, which e4m3 rounds to 0
    found = quantise(weight)
    assert found.weight_scale.tolist() == [[0x7E, 0x01]]
    assert dequantise(found)[0, 16] == 1.5 * 2.0**-9  # 6 x 2^-11 is exactly 1.5 steps


def test_a_scale_that_is_given_is_used() -> None:
    """Servers join gate and up under one scale."""
    weight = np.full((1, 16), 6.0, dtype=np.float32)
    found = quantise(weight, np.float32(0.5) * np.ones((), dtype=np.float32))
    assert (found.weight_scale.tolist(), found.weight.tolist()) == ([[0x40]], [[0x77] * 8])
    assert dequantise(found).tolist() == weight.tolist()


def test_bits_a_weight() -> None:
    found = quantise(np.ones((64, 128), dtype=np.float32))
    assert (found.weight.shape, found.weight_scale.shape) == ((64, 64), (64, 8))
    assert (found.weight.nbytes + found.weight_scale.nbytes) * 8 / (64 * 128) == 4.5


WEIGHTS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from([16, 48])),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


@settings(deadline=None)
@given(WEIGHTS)
def test_the_error_is_bounded(weight: np.ndarray) -> None:
    """Of a scaled value at most 1, half of the grid's widest gap; a scale rounded down by 1/16 cuts 6.4 to 6.

    So at most 1 of the block's scale, which is at most 17/16 of amax / 6. Among e4m3's subnormal numbers a scale is off
    by up to half of the smallest one instead: more by that, or cutting 6 times as much.
    """
    found = quantise(weight)
    error = np.abs(dequantise(found) - weight).reshape(*found.weight_scale.shape, 16).max(axis=-1)
    amax = np.abs(weight).reshape(*found.weight_scale.shape, 16).max(axis=-1)
    smallest = 2.0**-9 * found.weight_scale_2[..., None, None]
    bound = np.maximum(np.maximum(amax / 6 * 17 / 16, amax / 6 + smallest / 2), 3 * smallest)
    assert (error <= bound * (1 + 1e-6)).all()


@settings(deadline=None)
@given(WEIGHTS)
def test_quantising_again_changes_nothing(weight: np.ndarray) -> None:
    once = quantise(weight)
    again = quantise(dequantise(once), once.weight_scale_2)
    np.testing.assert_array_equal(dequantise(again), dequantise(once))


@pytest.mark.parametrize("shape", [(16,), (2, 8), (2, 17), (2, 2, 24)])
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="K a multiple of 16"):
        quantise(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize("bad", [float("nan"), INFINITY, -INFINITY])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight = np.zeros((2, 16), dtype=np.float32)
    weight[1, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantise(weight)


def test_parts_of_different_weights_are_refused() -> None:
    weight, scale, whole = quantise(np.ones((2, 32), dtype=np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        dequantise(Nvfp4(weight, scale[:, :1], whole))
    with pytest.raises(ValueError, match="do not fit"):
        dequantise(Nvfp4(weight, scale, f32(1, 2)))
    with pytest.raises(ValueError, match="weight_scale_2"):
        quantise(np.ones((2, 32), dtype=np.float32), f32(1, 2))
