"""Rows of the result file from single measurements, and the Markdown table beside it."""

from __future__ import annotations

from typing import Any

from stepscope.paged_mla.bench.cases import CASES, PAGE_SIZES, Case

Measurement = dict[str, Any]
FLASHMLA_PAGE = 64
_HEADINGS = (
    "| heads, batch, tokens | page | limit | goal | stepscope | FlashInfer FP8 | FlashInfer BF16 | FlashMLA BF16 "
    "| rel. error | gates |"
)


def best(times: dict[str, float], prefix: str) -> float | None:
    """The least of the times whose name starts with ``prefix``."""
    found = [us for name, us in times.items() if name.startswith(prefix)]
    return min(found) if found else None


def _of(found: list[Measurement], case: Case, page: int) -> list[Measurement]:
    shape = (case.heads, case.batch, case.tokens)
    return [m for m in found if (m["heads"], m["batch"], m["tokens"]) == shape and m["page"] == page]


def rows_of(own: list[Measurement], peers: dict[str, list[Measurement]]) -> list[dict[str, Any]]:
    """One row a case and page size.

    Args:
        own: this package's measurements.
        peers: the peers' by set; the first set's names are used as they are, others get ``@set``.

    Returns:
        Rows with the keys ``heads, batch, tokens, page, us, spread_us, peers, limit_us, goal_us, rel_err, lse_err`` and
        ``peer_rel_err``. FlashMLA only has pages of 64: rows with pages of 1 carry its time on the same tokens.
    """
    rows = []
    for case in CASES:
        for page in PAGE_SIZES:
            mine = _of(own, case, page)
            if not mine:
                continue
            times: dict[str, float] = {}
            errors: dict[str, float] = {}
            for position, (label, found) in enumerate(peers.items()):
                suffix = "" if position == 0 else f"@{label}"
                for other_page in PAGE_SIZES:
                    for one in _of(found, case, other_page):
                        mla = one["contender"].startswith("flashmla")
                        if one["us"] is None or other_page != (FLASHMLA_PAGE if mla else page):
                            continue
                        times[one["contender"] + suffix] = round(one["us"], 2)
                        errors[one["contender"] + suffix] = one["rel_err"]
                for dtype in ("fp8", "bf16"):
                    backends = {n: us for n, us in times.items() if n.endswith(suffix) and ("@" in n) == bool(suffix)}
                    fastest = best(backends, f"flashinfer-{dtype}-")
                    if fastest is not None:
                        times[f"flashinfer-{dtype}{suffix}"] = fastest
            rows.append(
                {
                    "heads": case.heads,
                    "batch": case.batch,
                    "tokens": case.tokens,
                    "page": page,
                    "us": mine[0]["us"],
                    "spread_us": mine[0]["spread_us"],
                    "peers": times,
                    "limit_us": case.limit_us,
                    "goal_us": case.goal_us,
                    "rel_err": mine[0]["rel_err"],
                    "lse_err": mine[0]["lse_err"],
                    "peer_rel_err": errors,
                }
            )
    return rows


def gates_of(row: dict[str, Any]) -> dict[str, bool]:
    """Which gates apply to a row, and whether it passes them.

    FlashInfer FP8 on every row; the best BF16 peer with up to 16 heads and at least 65,536 tokens in all; 100
    microseconds on 8 heads, 64 requests of 7,500 tokens.
    """
    times, us = row["peers"], row["us"]
    gates = {}
    fp8 = best(times, "flashinfer-fp8")
    if fp8 is not None:
        gates["faster than FlashInfer FP8"] = us < fp8
    bf16 = [t for name, t in times.items() if "bf16" in name]
    if bf16 and row["heads"] <= 16 and row["batch"] * row["tokens"] >= 65_536:
        gates["faster than the best BF16 peer"] = us < min(bf16)
    if (row["heads"], row["batch"], row["tokens"]) == (8, 64, 7500):
        gates["at most 100 us"] = us <= 100
    return gates


def markdown_of(result: dict[str, Any]) -> str:
    """The table for readers."""
    lines = [
        "# MLA decode on one GPU",
        "",
        f"{result['machine']}, driver {result['driver']}, torch {result['torch']}, triton {result['triton']}, commit",
        f"{result['commit']}. Peers: {result['peer_versions']}.",
        "",
        "Microseconds a call: median over 30 replays of a CUDA graph (in brackets the distance of the quartiles).",
        "The graph walks over distinct pools, so that more than 256 MB is read between two uses of one. Page numbers",
        "are random. Plans are made outside the timing, for all contenders. FlashMLA reads pages of 64 in all rows.",
        "`limit`: FP8 bytes at 4.3 TB/s or 790 TFLOP/s, whichever is longer.",
        "",
        _HEADINGS,
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        times = row["peers"]
        cells = [
            f"{row['heads']}, {row['batch']}, {row['tokens']:,}",
            str(row["page"]),
            f"{row['limit_us']:.1f}",
            f"{row['goal_us']:g}",
            f"**{row['us']:.1f}** ({row['spread_us']:.1f})",
            *(_cell(best(times, name)) for name in ("flashinfer-fp8", "flashinfer-bf16", "flashmla-bf16")),
            f"{row['rel_err']:.1e}",
            "pass" if all(gates_of(row).values()) else ", ".join(n for n, ok in gates_of(row).items() if not ok),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Peers' columns show the fastest of their versions and backends; the JSON has each.",
        "",
        "## Casts",
        "",
    ]
    lines += [f"- {name}: {us:.1f}" for name, us in result["casts"].items()]
    lines += [
        "",
        "## Accuracy",
        "",
        "Norm of the error over the norm of the float64 result on the dequantised pool.",
        "",
    ]
    lines += [
        f"- {name}: " + ", ".join(f"{key} {value:.2e}" for key, value in errors.items())
        for name, errors in result["accuracy"].items()
    ]
    lines += ["", "## Peers that did not run", ""]
    lines += [f"- {name}: {reason}" for name, reason in result["peer_failures"].items()] or ["None."]
    return "\n".join(lines) + "\n"


def _cell(us: float | None) -> str:
    return "" if us is None else f"{us:.1f}"
