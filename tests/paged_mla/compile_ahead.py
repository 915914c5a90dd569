"""Compiles every Triton launch of the table for its chip, without a GPU; prints its shared memory as JSON.

Run in a process of its own: kernels imported under Triton's interpreter cannot be compiled.
"""

from __future__ import annotations

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stepscope.paged_mla.kernels import copies, merge, plan, split
from stepscope.paged_mla.launch_table import PORTABLE, SHARED_LIMIT, TABLE

POOLS = {"e4m3": "*fp8e4nv", "bytes": "*u8", "bf16": "*bf16"}
FLOATS = {"score_scale", "value_scale", "scale"}
WIDE = {"slots", "capacity", "size", "stride"}


def compile_kernel(kernel: Any, chip: int, pointers: dict[str, str], constants: dict[str, Any], warps: int) -> int:
    names = kernel.arg_names
    signature = {}
    for name in names:
        plain = "fp32" if name in FLOATS else "i64" if name in WIDE else "i32"
        signature[name] = "constexpr" if name in constants else pointers.get(name, plain)
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in names if n in pointers or n.endswith("_stride")}
    source = ASTSource(kernel, signature, {(names.index(k),): v for k, v in constants.items()}, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", chip, 32), options={"num_warps": warps})
    return int(compiled.metadata.shared)


def main() -> None:
    found: list[dict[str, Any]] = []
    integers = dict.fromkeys(("pages", "indptr", "lengths", "starts", "spans", "seq_lens", "indices"), "*i32")
    for row in (*TABLE, *PORTABLE):
        launch = row.launch
        if launch.kernel != "triton":
            continue
        pool = dict.fromkeys(("latent", "rope"), POOLS[row.form])
        for page_size, has_indptr, out in ((1, True, "*bf16"), (64, False, "*fp32")):
            pointers = {
                **integers,
                **pool,
                **dict.fromkeys(("q_nope", "q_pe"), "*bf16"),
                **dict.fromkeys(("lse", "part_out", "part_lse"), "*fp32"),
                "out": out,
            }
            split_constants: dict[str, Any] = {
                "PAGE_SIZE": page_size,
                "HAS_INDPTR": has_indptr,
                "HAS_LSE": True,
                "FORM": row.form,
                "HEADS": launch.heads,
                "TOKENS": launch.tokens,
                "STAGES": launch.stages,
                "WIDE": False,
            }
            shared = compile_kernel(split.split_kernel, row.chip, pointers, split_constants, launch.warps)
            found.append({"kernel": "split", "chip": row.chip, "form": row.form, "shared": shared})
    forms = {80: ("bytes", "bf16")}
    for chip in SHARED_LIMIT:
        pointers = {**integers, **dict.fromkeys(("part_out", "part_lse", "lse"), "*fp32"), "out": "*bf16"}
        constants: dict[str, Any] = {"HAS_LSE": True, "PARTS": 8, "DIMS": 128}
        shared = compile_kernel(merge.merge_kernel, chip, pointers, constants, 4)
        found.append({"kernel": "merge", "chip": chip, "form": "", "shared": shared})
        constants = {"HAS_INDPTR": True, "PAGE_SIZE": 64, "TILE": 64, "REQUESTS": 256, "WORKERS": 64}
        shared = compile_kernel(plan.plan_kernel, chip, integers, constants, 8)
        found.append({"kernel": "plan", "chip": chip, "form": "", "shared": shared})
        for form in forms.get(chip, ("e4m3", "bf16")):
            pointers = {"source": POOLS[form], "to": "*bf16", "indices": "*i32"}
            shared = compile_kernel(copies.cast_kernel, chip, pointers, {"FORM": form, "BLOCK": 8192}, 8)
            found.append({"kernel": "cast", "chip": chip, "form": form, "shared": shared})
            constants = {"FORM": form, "WIDTH": 576, "ROWS": 8, "COLUMNS": 512}
            shared = compile_kernel(copies.gather_cast_kernel, chip, pointers, constants, 4)
            found.append({"kernel": "gather_cast", "chip": chip, "form": form, "shared": shared})
    print(json.dumps(found))  # noqa: T201 - read by test_compile.py


if __name__ == "__main__":
    main()
