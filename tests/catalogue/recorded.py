"""Recordings that lie beside the repository, with what is known to be true of them.

The labels are those of ../shared/traces/README.md, and what was counted or measured since, as the reason says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.catalogue.case import Case, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = Path(__file__).parents[3] / "shared/traces"
REFUSED = "public/HTA/execution_trace/benchmark_simple_add_et.json.gz"
"""No trace."""
RANKS = "timeline_analysis/sampled_rank-0", "trace_filter/sampled_rank-1"
CASTS = {"kv-pool-cast": "78 casts of the whole pool a step"}
HOST_BOUND = {"launch-bound": "76.2 ms a step, and 10 in a graph"}
SLOW_HOST = {"launch-bound": "137.6 ms a step, and 10.9 in a graph without the cast"}
BOUND_AFTER = {"launch-bound": "76.2 ms a step with the cast and without: the host is the limit once it is gone"}
MOE_TILES = {
    "gemm-below-roofline": "w13 and w2 of the experts take 51.0 µs for one token, their bytes 17.6; with other tiles an"
    " H200 was measured to take 23.8 (benchmarks/results/moe-tiles-h200.md)"
}

H200: dict[str, dict[str, Any]] = {
    "eager-cast-stacks": {"must": CASTS, "true_too": BOUND_AFTER},
    "eager-cast": {"must": CASTS, "true_too": BOUND_AFTER},
    "eager-gather": {"must": HOST_BOUND},
    "graph-cast": {"must": CASTS},
    "graph-gather": {},
}
SGLANG: dict[str, dict[str, Any]] = {
    "fp8-graph": {"must": CASTS},
    "fp8-eager-stacks": {"must": CASTS | SLOW_HOST, "true_too": MOE_TILES},
    "bf16-graph": {},
    "fp8-graph-capture": {},
}
PUBLIC: dict[str, dict[str, Any]] = {
    "TraceLens/h100/gaunernst_bert-small-uncased__1016001": {
        "must": {"launch-bound": "the GPU is 8% busy, and every gap ends right after a launch"}
    },
    "TraceLens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005": {
        "must": {
            "unfused-elementwise": "759 of the 1,198 kernels of an eager prefill are chains of casts, squares, means"
            " and products: the norms and rotary embeddings of its library, written out operation by operation. What"
            " is predicted is what fused kernels could gain at most"
        },
        "true_too": {
            "layout-copy": "96 strided copies, four in each of 24 layers: queries, keys and values [16, 16, 559, 64]"
            " laid out by head before attention, and its result [16, 559, 16, 64] laid out by token after it; attention"
            " and projections that take strides need none of them"
        },
    },
    "HTA/nccl_parser_config/nccl_data": {
        "true_too": {
            "launch-bound": "a training step of 220.9 ms whose GPU is busy for 49.6, and three of four gaps end right"
            " after a launch"
        }
    },
}
SLICES = {
    "layout-copy": "72 strided copies of 4.8 µs, two in each of 36 layers: queries [32, 4096] and keys [32, 1024] are"
    " sliced out of one projection and copied for the norm that follows, which could take strides"
}
INFERENCE = "TraceLens/inference"
JOINED: dict[str, tuple[str, dict[str, Any]]] = {
    f"{INFERENCE}/sglang_decode/sglang_Qwen3-8B_decode": (
        f"{INFERENCE}/sglang_decode/capture_traces/bs_32_rank0",
        {"true_too": SLICES},
    ),
    f"{INFERENCE}/vllm_decode_full/graph_execution": (
        f"{INFERENCE}/vllm_decode_full/graph_capture_rank_0.1773709742341309550.pt.trace",
        {},
    ),
}
"""Public traces of graphs: their capture, and their label with it and without."""


def cases() -> Iterator[Case]:
    """Yield a case for each trace, with its capture trace and without."""
    yield from _h200()
    yield from _sglang()
    for name in ("frontend.async_llm", "rank0"):
        yield _case(f"vllm-cpu/{name}.pt.trace")
    for path in sorted((SHARED / "public").rglob("*.json.gz")):
        name = path.relative_to(SHARED / "public").as_posix().removesuffix(".json.gz")
        if f"public/{name}.json.gz" == REFUSED:
            continue
        capture, label = JOINED.get(name, ("", PUBLIC.get(name, {})))
        yield _case(f"public/{name}", **label)
        if capture:
            yield _case(f"public/{name}", capture=f"public/{capture}", **label)
    pair = tuple(SHARED / f"public/HTA/{file}.json.gz" for file in RANKS)
    yield Case(name="public/HTA, sampled ranks 0 and 1", origin=Origin.PUBLIC, traces=pair)


def _h200() -> Iterator[Case]:
    told: dict[str, Any] = {"model": "glm-5", "tp": 8, "context": 1024}
    for name, label in H200.items():
        yield _case(f"h200-decode/{name}", **told, **label)
    for kind in ("cast", "gather"):
        yield _case(f"h200-decode/graph-{kind}", capture=f"h200-decode/eager-{kind}", **told, **H200[f"graph-{kind}"])


def _sglang() -> Iterator[Case]:
    told: dict[str, Any] = {"model": str(SHARED / "sglang-h200/model-config.json"), "tp": 1, "context": 1024}
    for name, label in SGLANG.items():
        yield _case(f"sglang-h200/flashinfer-{name}.trace", **told, **label)
    graph = "sglang-h200/flashinfer-fp8-graph"
    yield _case(f"{graph}.trace", capture=f"{graph}-capture.trace", must=CASTS | MOE_TILES, **told)


def _case(name: str, *, capture: str | None = None, **told: Any) -> Case:
    return Case(
        name=f"{name}{', joined' if capture else ''}",
        origin=Origin.PUBLIC if name.startswith("public/") else Origin.SERVER,
        traces=(SHARED / f"{name}.json.gz",),
        capture=SHARED / f"{capture}.json.gz" if capture else None,
        **told,
    )
