"""Correctness, then time, of a set of contenders over all cases."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

from stepscope.paged_mla.bench.cases import PAGE_SIZES, Case
from stepscope.paged_mla.bench.inputs import Inputs, make_inputs, probabilities_in_e4m3, reference_of
from stepscope.paged_mla.bench.timing import time_calls
from stepscope.paged_mla.copies import cast, gather_cast

if TYPE_CHECKING:
    from stepscope.paged_mla.bench.contenders import Contender

# Beyond rounding a bf16 result (1.7e-3), and for FlashInfer's FP8, whose probabilities are e4m3.
WRONG = 0.1
REFERENCE_POOL = (495_552, 1, 576)  # slots of GLM-5 on one rank


@dataclass(frozen=True)
class Measured:
    """One contender on one case and page size.

    Attributes:
        contender: its name.
        heads: query heads a rank.
        batch: requests.
        tokens: tokens a request.
        page: tokens a page.
        us: median microseconds; None where it failed or was wrong.
        spread_us: distance between the quartiles.
        rel_err: norm of the error over the norm of the float64 result.
        lse_err: largest error of the natural log-sum-exp.
        failure: why there is no time.
    """

    contender: str
    heads: int
    batch: int
    tokens: int
    page: int
    us: float | None = None
    spread_us: float | None = None
    rel_err: float | None = None
    lse_err: float | None = None
    failure: str | None = None
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


def without_folders(text: str) -> str:
    """A message without the folders of the paths in it, which only mean something on the machine of the run."""
    return re.sub(r"(?:/[^\s/:]+)+/", "", text)


def _error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def measure(contenders: list[Contender], cases: tuple[Case, ...]) -> list[Measured]:
    """Check and time every contender on every case that it supports."""
    device = torch.device("cuda")
    found = []
    for case in cases:
        for page in PAGE_SIZES:
            for dtype in (torch.float8_e4m3fn, torch.bfloat16):
                chosen = [c for c in contenders if c.dtype == dtype and page in c.page_sizes]
                if not chosen:
                    continue
                inputs = make_inputs(case, page, dtype, device)
                reference = reference_of(inputs)
                for contender in chosen:
                    one = _measure_one(contender, inputs, reference)
                    found.append(one)
                    print(  # noqa: T201 - progress of a command of minutes
                        f"{case.name:>16} page {page:<3} {contender.name:<22} {one.us or 0:9.2f} us "
                        f"rel {one.rel_err or 0:.1e} {one.failure or ''}",
                        file=sys.stderr,
                        flush=True,
                    )
                del inputs, reference
                torch.cuda.empty_cache()
    return found


def _measure_one(contender: Contender, inputs: Inputs, reference: tuple[torch.Tensor, torch.Tensor]) -> Measured:
    case = inputs.case
    where = (contender.name, case.heads, case.batch, case.tokens, inputs.page_size)
    try:
        call = contender.prepare(inputs)
        out, lse = call(0)
        torch.cuda.synchronize()
        rel_err = _error(out, reference[0])
        lse_err = float((lse.double() - reference[1]).abs().amax())
        if not rel_err < WRONG:
            return Measured(*where, rel_err=rel_err, lse_err=lse_err, failure="wrong result")
        timing = time_calls(call, len(inputs.pools))
    except (RuntimeError, ValueError, TypeError, AssertionError, ImportError, OSError) as error:
        return Measured(*where, failure=f"{type(error).__name__}: {without_folders(str(error))[:300]}")
    return Measured(*where, timing.us, timing.spread_us, rel_err, lse_err)


def accuracy(case: Case, contender: Contender) -> dict[str, float]:
    """Relative errors on a case with pages of 1: float32 output, and q and p cast to e4m3 instead."""
    inputs = make_inputs(case, 1, contender.dtype, torch.device("cuda"))
    expected, _ = reference_of(inputs)
    return {
        "rel_err_float32_out": _error(contender.prepare(inputs)(0)[0], expected),
        "rel_err_q_and_p_in_e4m3": _error(probabilities_in_e4m3(inputs), expected),
    }


def measure_casts() -> dict[str, float]:
    """Microseconds of casting the reference pool to bf16, whole and 131,072 random slots of it."""
    device = torch.device("cuda")
    pools = [torch.randn(REFERENCE_POOL, device=device).to(torch.float8_e4m3fn) for _ in range(2)]
    slots = torch.randperm(REFERENCE_POOL[0], device=device)[:131_072].int()
    if not torch.equal(cast(pools[0], torch.bfloat16), pools[0].bfloat16()):
        raise RuntimeError("cast differs from torch's")
    if not torch.equal(gather_cast(pools[0], slots, torch.bfloat16), pools[0][slots.long(), 0].bfloat16()):
        raise RuntimeError("gather_cast differs from torch's")
    return {
        "torch_whole_pool_us": time_calls(lambda i: pools[i].to(torch.bfloat16), 2).us,
        "cast_whole_pool_us": time_calls(lambda i: cast(pools[i], torch.bfloat16), 2).us,
        "gather_cast_131072_slots_us": time_calls(lambda i: gather_cast(pools[i], slots, torch.bfloat16), 2).us,
    }
