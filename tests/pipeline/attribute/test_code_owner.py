"""Whose a file is, by what stacks call it."""

from __future__ import annotations

import pytest

from stepscope.pipeline.attribute.code_owner import INTERNAL, is_yours


@pytest.mark.parametrize(
    "file",
    [
        *("lab.py", "run.py", "app/torch.py", "app/model.py", "sglang/srt/layers/radix_attention.py"),
        *("vllm/v1/worker.py", "flashinfer/mla.py", "transformers/models/qwen2/modeling_qwen2.py", "torchvision/a.py"),
        *("test.py", "test/bench.py", "<stdin>", "<ipython-input-3-8d>", "/var/ipykernel_12/345.py"),
        *("/home/u/torch/model.py", "/sgl-workspace/sglang/python/sglang/srt/models/utils.py", "C:\\work\\model.py"),
        *("/usr/lib/python3.11/site-packages/app/x.py", "/usr/lib/python3/dist-packages/app/x.py", "torch_tools.py"),
        *("/home/u/threading.py", "C:\\Python311\\Lib\\site-packages\\app\\x.py", "/home/u/triton/mine.py", ""),
    ],
)
def test_yours(file: str) -> None:
    assert is_yours(file)


@pytest.mark.parametrize(
    "file",
    [
        *("torch/nn/modules/module.py", "torch/_ops.py", "torch\\utils\\_contextlib.py", "triton/runtime/jit.py"),
        *("threading.py", "multiprocessing/process.py", "asyncio/runners.py", "contextlib.py", "<string>"),
        *("<frozen importlib._bootstrap>", "<eval_with_key>.7", "/var/torchinductor_root/ab/cab.py"),
        "/root/.cache/vllm/torch_compile_cache/af/rank_0_0/inductor_cache/xx/cxx.py",
        "/home/u/anaconda3/envs/k/lib/python3.7/site-packages/torch/autograd/profiler.py",
        *("/usr/lib/python3.11/threading.py", "C:\\Python311\\Lib\\asyncio\\base.py", "/usr/lib64/python3.9/ast.py"),
        *("/opt/pytorch/torch/nn/functional.py", "/src/triton/python/triton/runtime/jit.py"),
    ],
)
def test_not_yours(file: str) -> None:
    assert not is_yours(file)


def test_an_engine_is_internal_where_that_is_asked() -> None:
    engines = INTERNAL | {"sglang", "vllm"}
    assert not is_yours("sglang/srt/server.py", engines)
    assert not is_yours("/usr/lib/python3/dist-packages/vllm/v1/worker.py", engines)
    assert is_yours("my_sglang/server.py", engines)
