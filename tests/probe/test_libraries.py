"""What FlashInfer's and vLLM's own source declares and refuses, on files written like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.probe.cases import DEEPSEEK_V3, GLM_5, case_of, write_package

from stepscope.probe import flashinfer, sglang, vllm

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import Answer, HeadSizes, MlaBackend

_WRAPPER = """
    class BatchMLAPagedAttentionWrapper:
        def plan(self, qo_indptr, head_dim_ckv, head_dim_kpe, q_data_type, kv_data_type):
            if head_dim_kpe < 0:
                raise ValueError("negative")
            if kv_data_type == torch.float8_e4m3fn:
                major, minor = get_compute_capability(self.device)
                if major != 9:
                    raise ValueError(f"needs SM90, got SM{major}{minor}.")
                if head_dim_ckv != 512 or head_dim_kpe not in (0, 64):
                    raise ValueError(f"needs 512, got {head_dim_ckv}")

        def run(self, q_nope, q_pe, ckv_cache, kpe_cache, SCALES):
            pass
"""
NEW = _WRAPPER.replace("SCALES", "*, ckv_scale=None, kpe_scale=None")
OLD = _WRAPPER.replace("SCALES", "out=None")


def reads(tmp_path: Path, text: str, capability: tuple[int, int] | None, model: HeadSizes | None = GLM_5) -> Answer:
    folder = write_package(tmp_path / "flashinfer", {"mla.py": text})
    return flashinfer.reads_fp8(case_of({"flashinfer": folder}, capability, model))


def test_a_run_without_scales_cannot_read_fp8(tmp_path: Path) -> None:
    answer = reads(tmp_path, OLD, (9, 0))
    assert (answer.answer, answer.determined_by) == (False, "signature")
    assert answer.at == f"{tmp_path}/flashinfer/mla.py:13"


def test_a_plan_that_refuses_this_gpu_says_why(tmp_path: Path) -> None:
    answer = reads(tmp_path, NEW, (12, 0))
    assert (answer.answer, answer.reason) == (False, "refused: needs SM90, got SM120.")
    assert (answer.determined_by, answer.at) == ("library code", f"{tmp_path}/flashinfer/mla.py:9")


def test_on_hopper_it_reads_fp8(tmp_path: Path) -> None:
    answer = reads(tmp_path, NEW, (9, 0))
    assert (answer.answer, answer.determined_by) == (True, "library code")


def test_without_a_gpu_it_cannot_be_told(tmp_path: Path) -> None:
    answer = reads(tmp_path, NEW, None)
    assert answer.answer is None
    assert answer.reason == "may be refused: needs SM90, got SM……."


def test_without_flashinfer_it_cannot_be_told() -> None:
    answer = flashinfer.reads_fp8(case_of({}))
    assert (answer.answer, answer.reason) == (None, "flashinfer is not installed in this interpreter")


_BASE = """
    class MLACommonBackend:
        @classmethod
        def get_supported_head_sizes(cls):
            return [576]

        @classmethod
        def is_mla(cls):
            return True

    class MLACommonImpl:
        def __init__(self):
            self.supports_quant_query_input = True
"""
_BACKEND = """
    from vllm.v1.attention.backends.mla.common import MLACommonBackend, MLACommonImpl

    class OneMLABackend(MLACommonBackend):
        supported_kv_cache_dtypes = ["auto", TYPES]

        @staticmethod
        def get_name():
            return "ONE_MLA"

        @staticmethod
        def get_impl_cls():
            return OneMLAImpl

        @classmethod
        def supports_compute_capability(cls, capability):
            return GPUS

        @classmethod
        def supports_combination(cls, head_size, device_capability):
            config = get_current_vllm_config().model_config
            if config is not None:
                nope = getattr(config.hf_text_config, "qk_nope_head_dim", 1)
                if nope not in SIZES:
                    return f"needs qk_nope_head_dim in SIZES, but got {nope}"
            return None

    class OneMLAImpl(MLACommonImpl):
        def __init__(self, kv_cache_dtype):
            super().__init__()
            INIT

        def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
            return kernel(q, kv_c_and_k_pe_cache)
"""


def backend(
    tmp_path: Path,
    *,
    types: str = '"fp8"',
    gpus: str = "capability.major in [9, 10]",
    sizes: str = "[64, 128, 192]",
    init: str = "self.supports_quant_query_input = False",
    capability: tuple[int, int] | None = (9, 0),
    model: HeadSizes = GLM_5,
) -> MlaBackend:
    text = _BACKEND.replace("TYPES", types).replace("GPUS", gpus).replace("SIZES", sizes).replace("INIT", init)
    folder = "v1/attention/backends/mla"
    package = write_package(tmp_path / "vllm", {f"{folder}/common.py": _BASE, f"{folder}/one.py": text})
    (found,) = vllm.backends(case_of({"vllm": package}, capability, model))
    return found


def test_a_class_that_declares_fp8_and_16_bit_queries_reads_it(tmp_path: Path) -> None:
    found = backend(tmp_path)
    assert (found.name, found.cls, found.fp8_kv.answer) == ("ONE_MLA", "OneMLABackend", True)
    assert found.pool_cast.answer is False
    assert found.head_sizes is not None
    assert found.head_sizes.answer is True


@pytest.mark.parametrize(
    ("change", "answer", "part"),
    [
        ({"types": '"bfloat16"'}, False, "does not declare an FP8 type"),
        ({"gpus": "capability.major == 10"}, False, "is not for SM90"),
        ({"gpus": "capability.major == 10", "capability": None}, None, "the GPU is not known"),
        ({"gpus": "probe_driver()"}, None, "worked out when it runs"),
        ({"init": "pass"}, False, "takes FP8 queries"),
        ({"init": "self.supports_quant_query_input = ask()"}, None, "worked out when it runs"),
        (
            {"init": "\n            if is_quantized_kv_cache(kv_cache_dtype): raise NotImplementedError('not yet')"},
            False,
            "it refuses an FP8 cache: not yet",
        ),
    ],
)
def test_what_excludes_it_is_said(tmp_path: Path, change: dict[str, Any], answer: object, part: str) -> None:
    found = backend(tmp_path, **change)
    assert found.fp8_kv.answer is answer
    assert part in found.fp8_kv.reason


def test_head_sizes_are_those_that_its_check_takes(tmp_path: Path) -> None:
    found = backend(tmp_path, sizes="[64, 128]")
    assert found.head_sizes is not None
    assert (found.head_sizes.answer, found.head_sizes.reason) == (
        False,
        "needs qk_nope_head_dim in [64, 128], but got 192",
    )
    other = backend(tmp_path, sizes="[64, 128]", model=DEEPSEEK_V3)
    assert other.head_sizes is not None
    assert other.head_sizes.answer is True


def test_the_table_names_each_backend_once_and_a_source_for_what_it_claims() -> None:
    rows = sglang.rows()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.reads_fp8 is None or row.reason
        assert row.reads_fp8 is None or row.source or row.kernels, row.name
        assert not row.head_sizes or row.head_source, row.name


def test_a_chosen_backend_is_marked(tmp_path: Path) -> None:
    text = """
        class FlashInferMLAAttnBackend:
            def forward_decode(self, q, layer):
                return run(q, self.pool.get_key_buffer(0))
    """
    package = write_package(tmp_path / "sglang", {"srt/layers/attention/flashinfer_mla_backend.py": text})
    folders = {"sglang": package}
    for chosen, expected in ((("flashinfer",), True), (("fa3",), False), ((), None)):
        (found,) = sglang.backends(case_of(folders, (9, 0), None, *chosen))
        assert found.is_chosen is expected
        assert found.head_sizes is None


def test_where_the_kernels_source_is_not_found_nothing_is_claimed(tmp_path: Path) -> None:
    text = """
        class TritonAttnBackend:
            def forward_decode(self, q, layer):
                return run(q, self.pool.get_key_buffer(0))
    """
    kernel = """
        def stage1(Q, K_Buffer):
            q = tl.load(Q)
            k = tl.load(K_Buffer)
            return tl.dot(CAST, k)
    """
    attention = "srt/layers/attention"
    package = write_package(tmp_path / "sglang", {f"{attention}/triton_backend.py": text})
    expected = {None: None, "q": True, "q.to(K_Buffer.dtype.element_ty)": False}
    for cast, answer in expected.items():
        if cast is not None:
            path = package / attention / "triton_ops" / "decode_attention.py"
            write_package(path.parent, {path.name: kernel.replace("CAST", cast)})
        (found,) = sglang.backends(case_of({"sglang": package}, (8, 9)))
        assert found.fp8_kv.answer is answer
    (old,) = sglang.backends(case_of({"sglang": package}, (8, 0)))
    assert old.fp8_kv.answer is False


@pytest.mark.parametrize(("rank", "answer"), [(512, True), (256, True), (384, False)])
def test_dimensions_kept_in_records_are_read(tmp_path: Path, rank: int, answer: object) -> None:
    text = """
        deepseek = MLAHeadDimensions(qk_rope_head_dim=64, kv_lora_rank=512)
        smaller = MLAHeadDimensions(qk_rope_head_dim=64, kv_lora_rank=256)

        def check(query, kv_lora_rank, qk_rope_head_dim, page_size):
            num, heads, width = query.shape
            is_deepseek = kv_lora_rank == deepseek.kv_lora_rank and qk_rope_head_dim == deepseek.qk_rope_head_dim
            is_smaller = kv_lora_rank == smaller.kv_lora_rank and qk_rope_head_dim == smaller.qk_rope_head_dim
            if not (is_deepseek or is_smaller):
                raise ValueError(f"unsupported {kv_lora_rank} and {qk_rope_head_dim} by {page_size}")
            expected = kv_lora_rank + qk_rope_head_dim
            if width != expected:
                raise ValueError("another width")
    """
    folder = write_package(tmp_path / "flashinfer", {"mla.py": text})
    model = msgspec.structs.replace(GLM_5, kv_lora_rank=rank)
    found = flashinfer.shape_check(case_of({"flashinfer": folder}, None, model), "check")
    assert found.answer is answer
    assert found.reason == ("check() refuses none of them" if answer else "refused: unsupported 384 and 64 by …")
