"""The published SGLang of three versions: expected lines were read in the files, and their text is checked here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.probe.cases import case_of, write_package
from tests.published_source import SGLANG_0_4_6, SGLANG_0_5_9, SGLANG_0_5_14, Wheel, published_source

from stepscope.probe import sglang

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import MlaBackend, Site

_ATTENTION = "srt/layers/attention"
CASTS: dict[Wheel, dict[str, list[tuple[str, int, int, str]]]] = {
    SGLANG_0_4_6: {"flashinfer": [], "fa3": [], "flashmla": [], "triton": []},
    SGLANG_0_5_9: {
        "flashinfer": [("flashinfer_mla", 575, 576, "extend"), ("flashinfer_mla", 639, 640, "decode")],
        "fa3": [("flashattention", 999, 1001, "extend"), ("flashattention", 1274, 1275, "decode")],
        "flashmla": [("flashinfer_mla", 575, 576, "extend")],
        "cutlass_mla": [("flashinfer_mla", 575, 576, "extend")],
        "trtllm_mla": [("flashinfer_mla", 575, 576, "extend")],
        "triton": [],
    },
    SGLANG_0_5_14: {
        "flashinfer": [("flashinfer_mla", 562, 562, "extend"), ("flashinfer_mla", 624, 624, "decode")],
        "triton": [],
    },
}
PLANS = {
    SGLANG_0_4_6: ("model_runner.kv_cache_dtype", [(493, 494), (508, 509), (642, 643)]),
    SGLANG_0_5_9: ("model_runner.dtype", [(745, 746), (760, 761), (893, 894)]),
    SGLANG_0_5_14: ("model_runner.dtype", None),
}


@pytest.fixture(name="backends", scope="module", params=CASTS, ids=lambda wheel: wheel.requirement)
def backends_fixture(request: pytest.FixtureRequest) -> tuple[Wheel, Path, dict[str, MlaBackend]]:
    assert request.config.cache is not None
    folder = published_source(request.config.cache, request.param) / "sglang"
    found = sglang.backends(case_of({"sglang": folder}, (12, 0)))
    return request.param, folder, {backend.name: backend for backend in found}


Backends = tuple[Wheel, "Path", "dict[str, MlaBackend]"]


def placed(site: Site) -> tuple[str, int, int, str]:
    name = site.file.rpartition("/")[2].removesuffix("_backend.py")
    (phase,) = site.phases
    return name, site.line, site.end_line, phase


def test_the_casts_are_where_the_files_have_them(backends: Backends) -> None:
    wheel, folder, found = backends
    for name, expected in CASTS[wheel].items():
        backend = found[name]
        assert [placed(site) for site in backend.pool_cast_sites] == expected, name
        assert backend.pool_cast.answer is bool(expected)
        for file, line, end_line, _ in expected:
            lines = (folder / _ATTENTION / f"{file}_backend.py").read_text("utf-8").splitlines()
            text = "".join(part.strip() for part in lines[line - 1 : end_line])
            assert "token_to_kv_pool.get_key_buffer(" in text
            assert ".to(" in text
            assert "q.dtype" in text


def test_plan_is_told_what_the_files_tell_it(backends: Backends) -> None:
    wheel, folder, found = backends
    given, lines = PLANS[wheel]
    flashinfer = found["flashinfer"]
    assert flashinfer.plan_dtype is not None
    assert flashinfer.plan_dtype.answer is (given == "model_runner.dtype")
    assert {site.given for site in flashinfer.plan_sites} == {given}
    text = (folder / _ATTENTION / "flashinfer_mla_backend.py").read_text("utf-8").splitlines()
    found_lines = [(site.line, site.end_line) for site in flashinfer.plan_sites]
    assert found_lines == (lines or found_lines)
    assert len(found_lines) == 3
    for first, second in found_lines:
        assert text[first - 1].strip() in {"self.data_type,", "self.q_data_type,"}
        assert (second, text[second - 1].strip()) == (first + 1, "self.data_type,")


def test_no_backend_but_triton_is_told_to_read_fp8_on_the_storys_gpu(backends: Backends) -> None:
    wheel, _, found = backends
    reading = {name for name, backend in found.items() if backend.fp8_kv.answer}
    # from 0.5.12 on the Triton kernel narrows the queries to the pool's type
    assert reading == (set() if wheel == SGLANG_0_5_14 else {"triton"})
    if wheel == SGLANG_0_5_14:
        assert found["triton"].fp8_kv.reason.endswith("q.to(K_Buffer.dtype.element_ty)")
    if wheel == SGLANG_0_4_6:
        assert found["flashinfer"].fp8_kv.answer is None  # no flashinfer is beside it here
        assert "flashinfer is not installed" in found["flashinfer"].fp8_kv.reason


def test_backends_that_the_table_does_not_know_are_found_by_their_cast(backends: Backends) -> None:
    wheel, _, found = backends
    expected = {SGLANG_0_4_6: set(), SGLANG_0_5_9: {"aiter", "xpu"}, SGLANG_0_5_14: {"xpu"}}[wheel]
    assert expected <= set(found)


def test_head_sizes_are_refused_where_the_library_beside_it_refuses_them(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert request.config.cache is not None
    folder = published_source(request.config.cache, SGLANG_0_5_9) / "sglang"
    check = """
        def _check_trtllm_gen_mla_shape(query, qk_nope_head_dim, kv_lora_rank):
            if query.ndim != 4:
                raise ValueError("Expected 4 dimensions")
            if qk_nope_head_dim != 128:
                raise ValueError(f"Expected qk_nope_head_dim == 128, got {qk_nope_head_dim}")
    """
    flashinfer = write_package(tmp_path / "flashinfer", {"mla.py": check})
    found = {one.name: one for one in sglang.backends(case_of({"sglang": folder, "flashinfer": flashinfer}, (12, 0)))}
    heads = found["trtllm_mla"].head_sizes
    assert heads is not None
    assert (heads.answer, heads.reason) == (False, "refused: Expected qk_nope_head_dim == 128, got 192")
    assert heads.at == f"{flashinfer}/mla.py:6"
