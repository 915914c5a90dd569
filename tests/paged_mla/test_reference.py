from __future__ import annotations

import math

import torch

from stepscope.paged_mla.reference import gather_rows, mla_decode_reference, request_slots


def rows(*values: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    # One latent and one rope number a row, the rest zero.
    latent, rope = torch.zeros(len(values), 512), torch.zeros(len(values), 64)
    for i, (a, b) in enumerate(values):
        latent[i, 0], rope[i, 0] = a, b
    return latent, rope


def queries(a: float, b: float) -> tuple[torch.Tensor, torch.Tensor]:
    nope, pe = torch.zeros(1, 1, 512), torch.zeros(1, 1, 64)
    nope[0, 0, 0], pe[0, 0, 0] = a, b
    return nope, pe


def test_two_tokens_by_hand() -> None:
    # Logits: 0.5 * (2 * 1 + 4 * 0.5) = 2 and 0.5 * (2 * 3 + 4 * -1) = 1, so the weights are e^2 and e^1.
    latent, rope = rows((1.0, 0.5), (3.0, -1.0))
    out, lse = mla_decode_reference(
        *queries(2.0, 4.0), latent, rope, [torch.tensor([0, 1])], [2], page_size=1, sm_scale=0.5
    )
    first = math.e / (math.e + 1)
    assert math.isclose(out[0, 0, 0], first * 1 + (1 - first) * 3, rel_tol=1e-12)
    assert math.isclose(lse[0, 0], math.log(math.e**2 + math.e), rel_tol=1e-12)
    assert out[0, 0, 1:].abs().amax() == 0


def test_the_scale_applies_to_keys_and_values() -> None:
    # Stored 2, worth 1: logit 1 * 3 * 1 = 3, value 1.
    latent, rope = rows((2.0, 0.0))
    out, lse = mla_decode_reference(
        *queries(3.0, 0.0), latent, rope, [torch.tensor([0])], [1], page_size=1, sm_scale=1.0, kv_scale=0.5
    )
    assert out[0, 0, 0] == 1.0
    assert lse[0, 0] == 3.0


def test_no_tokens() -> None:
    latent, rope = rows((1.0, 1.0))
    out, lse = mla_decode_reference(
        *queries(1.0, 1.0), latent, rope, [torch.tensor([0])], [0], page_size=1, sm_scale=1.0
    )
    assert out.abs().amax() == 0
    assert lse[0, 0] == -math.inf


def test_slots_of_pages() -> None:
    assert request_slots(torch.tensor([5, 2]), 5, 3).tolist() == [15, 16, 17, 6, 7]
    assert request_slots(torch.tensor([5, -1]), 5, 3).tolist() == [15, 16, 17, -1, -1]
    assert request_slots(torch.tensor([5]), 9, 3).tolist() == [15, 16, 17]
    assert request_slots(torch.tensor([5]), -1, 3).tolist() == []


def test_slots_outside_the_pool_are_left_out() -> None:
    latent, rope = rows((1.0, 2.0), (3.0, 4.0))
    keys, values = gather_rows(latent, rope, torch.tensor([-1, 1, 2]))
    assert keys.shape == (1, 576)
    assert keys[0, [0, 512]].tolist() == [3.0, 4.0]
    assert values.shape == (1, 512)
