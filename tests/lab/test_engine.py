"""The engine on the CPU: against a plain float32 model, and with each slowdown."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from stepscope.errors import UsageError
from stepscope.lab import slowdowns
from stepscope.lab.config import PAGE, LabConfig, contexts_of
from stepscope.lab.engine import Engine
from stepscope.lab.weights import Weights, make_weights
from stepscope.model import Mla

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.lab.weights import Tensors

CPU = torch.device("cpu")
TINY = LabConfig(model="tiny", layers=4, tp_slice=2, contexts=(40, 100, 7), pool_slots=4096)
RELATIVE = 1e-4
RELATIVE_BF16 = 0.03


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def reference(engine: Engine, weights: Weights) -> torch.Tensor:
    """Return the logits of the engine's next step: keys and values by head, token by token, all in float32.

    Of the engine it takes the tokens, the lengths and what lies in the pool.
    """
    logits = []
    for request, length in enumerate(engine.pool.lengths.tolist()):
        slots = [
            int(engine.pool.page_table[request, at // PAGE]) * PAGE + at % PAGE
            for at in range(length + engine.config.new_tokens)
        ]
        pools = [pool[slots, 0].float() for pool in engine.pool.layers]
        streams = [weights.outside["embedding"][token].float() for token in engine.tokens[request].tolist()]
        for own, pool in zip(weights.layers, pools, strict=True):
            streams = layer(engine, own, pool, length, streams)
        normed = norm(streams[-1], weights.outside["final_norm"])
        logits.append(weights.outside["lm_head"].float() @ normed)
    return torch.stack(logits)


def layer(
    engine: Engine, own: Tensors, pool: torch.Tensor, length: int, streams: list[torch.Tensor]
) -> list[torch.Tensor]:
    spec = engine.config.spec()
    mla = spec.attention
    assert isinstance(mla, Mla)
    latent_end = mla.q_lora_rank + mla.kv_lora_rank  # type: ignore[operator]
    queries = []
    for turn, stream in enumerate(streams):
        low = own["fused_qkv_a_proj"].float() @ norm(stream, own["input_norm"])
        queries.append(own["q_b_proj"].float() @ norm(low[: mla.q_lora_rank], own["q_a_norm"]))
        latent = norm(low[mla.q_lora_rank : latent_end], own["kv_a_norm"])
        row = torch.cat((latent, turned(low[latent_end:], length + turn)))
        pool[length + turn] = row.to(torch.float8_e4m3fn).float()
    out = []
    for turn, (stream, query) in enumerate(zip(streams, queries, strict=True)):
        seen = pool[: length + turn + 1]
        heads = []
        for head, q in enumerate(query.view(len(own["w_kc"]), -1)):
            keys = seen[:, : mla.kv_lora_rank] @ own["w_kc"][head].float().t()
            scores = keys @ q[: mla.qk_nope_head_dim]
            scores = scores + seen[:, mla.kv_lora_rank :] @ turned(q[mla.qk_nope_head_dim :], length + turn)
            shares = torch.softmax(scores / math.sqrt(mla.qk_nope_head_dim + mla.qk_rope_head_dim), 0)
            heads.append(shares @ (seen[:, : mla.kv_lora_rank] @ own["w_vc"][head].float()))
        after = stream + own["o_proj"].float() @ torch.cat(heads)
        out.append(after + feed_forward(spec.experts.per_token if spec.experts else 0, own, after))
    return out


def feed_forward(per_token: int, own: Tensors, stream: torch.Tensor) -> torch.Tensor:
    x = norm(stream, own["post_attention_norm"])
    if "router" not in own:
        return mlp(own["dense_w13"], own["dense_w2"], x)
    scores = torch.sigmoid(own["router"].float() @ x).tolist()
    chosen = sorted(range(len(scores)), key=lambda expert: -scores[expert])[:per_token]
    total = sum(scores[expert] for expert in chosen)
    routed = torch.stack([scores[expert] / total * mlp(own["w13"][expert], own["w2"][expert], x) for expert in chosen])
    return routed.sum(0) + mlp(own["shared_w13"], own["shared_w2"], x)


def mlp(w13: torch.Tensor, w2: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gate, up = (w13.float() @ x).chunk(2)
    return w2.float() @ (gate / (1 + torch.exp(-gate)) * up)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-5) * weight.float()


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """Turn neighbouring values as complex numbers."""
    pairs = torch.view_as_complex(x.reshape(-1, 2).contiguous())
    angles = position * 10_000.0 ** (-torch.arange(len(pairs)) / len(pairs))
    return torch.view_as_real(pairs * torch.polar(torch.ones(len(pairs)), angles)).flatten()


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("new_tokens", [1, 5])
def test_float32_is_the_plain_model(new_tokens: int) -> None:
    config = replace(TINY, new_tokens=new_tokens)
    weights = make_weights(config.spec(), config.tp_slice, CPU, torch.float32)
    engine = Engine(config, device=CPU, dtype=torch.float32, weights=weights)
    for _ in range(2):
        wanted = reference(engine, weights)
        assert distance(engine.step(), wanted) < RELATIVE


def test_bf16_is_near_the_plain_model() -> None:
    weights = make_weights(TINY.spec(), TINY.tp_slice, CPU, torch.bfloat16)
    engine = Engine(TINY, device=CPU, weights=weights)
    wanted = reference(engine, weights)
    assert 0 < distance(engine.step(), wanted) < RELATIVE_BF16


@pytest.mark.parametrize("new_tokens", [1, 5])
@pytest.mark.parametrize("name", slowdowns.names())
def test_a_slowdown_does_not_change_the_logits(name: str, new_tokens: int) -> None:
    config = replace(TINY, new_tokens=new_tokens)
    healthy, slow = (Engine(each, device=CPU) for each in (config, replace(config, slowdown=name)))
    for _ in range(3):
        wanted = healthy.step().float()
        assert distance(slow.step(), wanted) < RELATIVE_BF16
        assert torch.equal(slow.tokens[:3], healthy.tokens)


@pytest.mark.parametrize("name", slowdowns.names())
def test_a_slowdown_changes_a_part_and_explains_itself(name: str) -> None:
    healthy, slow = (Engine(each, device=CPU).parts for each in (TINY, replace(TINY, slowdown=name)))
    if name not in {"no-graph", "unfused-norms"}:  # without a GPU there are neither graphs nor fused norms
        assert slow != healthy
    assert len(slowdowns.explain(name)) > 150


def test_the_whole_pool_is_converted_only_when_switched_on() -> None:
    def converted(config: LabConfig) -> list[list[int]]:
        engine = Engine(config, device=CPU)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            engine.step()
        return [e.input_shapes[0] for e in profiler.events() if e.name == "aten::to" and e.input_shapes[0]]

    pool = [TINY.pool_slots, 1, 80]
    assert converted(replace(TINY, slowdown="full-pool-cast")).count(pool) == 4
    assert pool not in converted(TINY)


def test_requests_start_anew_after_a_reset() -> None:
    engine = Engine(TINY, device=CPU)
    first = engine.step().clone()
    assert engine.pool.lengths.tolist() == [41, 101, 8]
    engine.step()
    engine.reset()
    assert engine.pool.lengths.tolist() == [40, 100, 7]
    assert torch.equal(engine.step(), first)


def test_layers_share_weights_by_kind() -> None:
    weights = make_weights(TINY.spec(), 2, CPU, torch.bfloat16, sets=2)
    first, second, third, fourth = weights.layers
    assert first["o_proj"] is third["o_proj"]
    assert second["o_proj"] is fourth["o_proj"]
    assert first["o_proj"] is not second["o_proj"]
    assert "router" not in first
    assert second["w13"] is fourth["w13"]


def test_attention_weights_survive_quantisation() -> None:
    weight = make_weights(TINY.spec(), 2, CPU, torch.bfloat16).layers[0]["q_b_proj"]
    scale = 2.0 ** round(-math.log2(64) / 2)
    assert torch.equal((weight / scale).to(torch.float8_e4m3fn).to(torch.bfloat16) * scale, weight)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TINY, slowdown="none"), "--slowdown none: known are allocator-churn, fills"),
        (replace(TINY, attention="none"), "--attention none: known are gather-cast, full-pool-cast"),
        (replace(TINY, model="none"), "--model none: known are deepseek-v3, .*glm-5, .*tiny"),
        (replace(TINY, pool_slots=256), "--pool-slots 256: the requests need 576"),
        (replace(TINY, layers=0), "--layers 0: at least 1"),
        (replace(TINY, tp_slice=3), "does not divide by 3 ranks"),
    ],
)
def test_what_cannot_be_is_said(config: LabConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Engine(config, device=CPU)


def test_lengths_are_one_for_all_or_one_each() -> None:
    assert contexts_of(3, (5,)) == (5, 5, 5)
    assert contexts_of(2, (5, 6)) == (5, 6)
    with pytest.raises(UsageError, match="2 times for a batch of 3"):
        contexts_of(3, (5, 6))
