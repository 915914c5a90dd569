"""The contenders: this package's kernels and, where they are installed, FlashInfer's and FlashMLA's."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from stepscope.paged_mla.bench.inputs import SM_SCALE, Inputs
from stepscope.paged_mla.decode import mla_decode
from stepscope.paged_mla.plan import make_plan

if TYPE_CHECKING:
    from stepscope.paged_mla.launch_table import Launch

# Launches one decode on pool i; returns out [B, H, 512] and the natural-log lse [B, H].
Call: TypeAlias = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Contender:
    """One way to compute a case.

    Attributes:
        name: key in the results.
        dtype: of the pools it reads.
        page_sizes: those it supports.
        prepare: everything that a step does once for all its layers.
    """

    name: str
    dtype: torch.dtype
    page_sizes: tuple[int, ...]
    prepare: Callable[[Inputs], Call]


def own(
    name: str = "stepscope",
    launch: Launch | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Contender:
    """This package, with the table's launch or another."""

    def prepare(inputs: Inputs) -> Call:
        heads = inputs.case.heads
        plan = make_plan(
            inputs.seq_lens,
            heads=heads,
            page_size=inputs.page_size,
            block_table=inputs.table,
            kv_dtype=dtype,
            launch=launch,
        )
        out = torch.empty(inputs.case.batch, heads, 512, dtype=out_dtype, device=inputs.query.device)
        lse = torch.empty(inputs.case.batch, heads, dtype=torch.float32, device=inputs.query.device)

        def call(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            mla_decode(
                inputs.q_nope,
                inputs.q_pe,
                inputs.pools[i],
                block_table=inputs.table,
                seq_lens=inputs.seq_lens,
                page_size=inputs.page_size,
                sm_scale=SM_SCALE,
                out=out,
                lse=lse,
                plan=plan,
            )
            return out, lse

        return call

    return Contender(name, dtype, (1, 64), prepare)


def _flashinfer(backend: str, dtype: torch.dtype) -> Callable[[Inputs], Call]:
    def prepare(inputs: Inputs) -> Call:
        module: Any = importlib.import_module("flashinfer.mla")
        case, device = inputs.case, inputs.query.device
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device)
        wrapper = module.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
        wrapper.plan(
            torch.arange(case.batch + 1, dtype=torch.int32, device=device),
            inputs.indptr,
            inputs.indices,
            inputs.seq_lens,
            case.heads,
            512,
            64,
            inputs.page_size,
            False,  # noqa: FBT003 - a positional flag of FlashInfer's
            SM_SCALE,
            torch.bfloat16,
            dtype,
        )
        scales = {"ckv_scale": 1.0, "kpe_scale": 1.0} if dtype == torch.float8_e4m3fn else {}
        q_nope, q_pe = inputs.q_nope.contiguous(), inputs.q_pe.contiguous()
        out = torch.empty_like(q_nope)
        lse = torch.empty(case.batch, case.heads, dtype=torch.float32, device=device)
        paged = [pool.view(-1, inputs.page_size, 576) for pool in inputs.pools]

        def call(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            wrapper.run(
                q_nope, q_pe, paged[i][..., :512], paged[i][..., 512:], out=out, lse=lse, return_lse=True, **scales
            )
            return out, lse

        def natural(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            call(i)
            return out, lse * math.log(2)

        # The first call is checked and needs the natural logarithm; timed ones must not pay for it.
        first = True

        def checked_once(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            nonlocal first
            if first:
                first = False
                return natural(i)
            return call(i)

        return checked_once

    return prepare


def _flashmla(inputs: Inputs) -> Call:
    module: Any = importlib.import_module("flash_mla")
    case = inputs.case
    metadata, splits = module.get_mla_metadata(inputs.seq_lens, case.heads, 1)
    query = inputs.query.view(case.batch, 1, case.heads, 576)
    paged = [pool.view(-1, inputs.page_size, 1, 576) for pool in inputs.pools]

    def call(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = module.flash_mla_with_kvcache(
            query, paged[i], inputs.table, inputs.seq_lens, 512, metadata, splits, softmax_scale=SM_SCALE, causal=False
        )
        return out.view(case.batch, case.heads, 512), lse.view(case.batch, case.heads)

    return call


def peers() -> list[Contender]:
    """The peers that are installed, each backend by itself."""
    found = []
    if importlib.util.find_spec("flashinfer") is not None:
        for short, dtype in (("fp8", torch.float8_e4m3fn), ("bf16", torch.bfloat16)):
            found += [
                Contender(f"flashinfer-{short}-{backend}", dtype, (1, 64), _flashinfer(backend, dtype))
                for backend in ("fa2", "fa3")
            ]
    if importlib.util.find_spec("flash_mla") is not None:
        found.append(Contender("flashmla-bf16", torch.bfloat16, (64,), _flashmla))
    return found


def peer_versions() -> dict[str, str]:
    """Versions of the peers that are installed, as they name themselves."""
    found = {}
    for module, package in (("flashinfer", "flashinfer-python"), ("flash_mla", "tokenspeed-flashmla")):
        if importlib.util.find_spec(module) is None:
            continue
        try:
            loaded = importlib.import_module(module)
            found[module] = str(version(package) or getattr(loaded, "__version__", "unknown"))
        except (ImportError, PackageNotFoundError):
            found[module] = "not importable"
    return found
