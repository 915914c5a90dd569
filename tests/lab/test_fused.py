"""The fused kernels against plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from stepscope.lab import fused, plain

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device=DEVICE).normal_(generator=torch.Generator(DEVICE).manual_seed(sum(shape)))


def test_rms_norm_of_rows_that_lie_apart() -> None:
    x, weight = drawn(5, 300)[:, 50:250], drawn(200)
    torch.testing.assert_close(fused.rms_norm(x, weight), plain.rms_norm(x, weight))


def test_add_rms_norm_adds_in_place() -> None:
    x, residual, weight = drawn(5, 200), drawn(5, 200), drawn(200)
    ours, theirs = residual.clone(), residual.clone()
    torch.testing.assert_close(fused.add_rms_norm(x, ours, weight), plain.add_rms_norm(x, theirs, weight))
    torch.testing.assert_close(ours, residual + x)


def test_silu_mul_of_a_width_that_no_block_divides() -> None:
    x = drawn(3, 2 * 700)
    torch.testing.assert_close(fused.silu_mul(x), plain.silu_mul(x))


def test_route_chooses_the_same_experts() -> None:
    scores = drawn(5, 48)
    ours, theirs = fused.route(scores, 8), plain.route(scores, 8)
    torch.testing.assert_close(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_rotate_and_append_writes_the_queries_and_the_pool_and_nothing_else() -> None:
    queries, latent, k_rope = drawn(5, 3, 48)[..., 32:], drawn(5, 64), drawn(5, 100)[:, 84:]
    angles, slots = drawn(5, 2, 8), torch.tensor([3, 9, 1, 30, 7], device=DEVICE)
    written = []
    for small in (fused, plain):
        q = torch.full((5, 3, 80), 7.0, device=DEVICE)
        pool = torch.full((40, 1, 80), 0.5, device=DEVICE, dtype=torch.bfloat16)
        small.rotate_and_append(queries, latent, k_rope, angles, q, pool, slots)
        written.append((q, pool.float()))
    (q, pool), (q_wanted, pool_wanted) = written
    torch.testing.assert_close(q, q_wanted)
    assert (q[..., :64] == 7).all()
    torch.testing.assert_close(pool, pool_wanted, rtol=2**-7, atol=0)  # the interpreter cuts bits off, a GPU rounds
    untouched = [slot for slot in range(40) if slot not in slots.tolist()]
    assert (pool[untouched] == 0.5).all()
