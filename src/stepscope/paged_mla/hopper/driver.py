"""The few CUDA driver calls that launch a cubin on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

from stepscope.paged_mla.hopper.compile import compile_cubin

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    # CUlaunchAttribute: an id, then a 64-byte union of which the first int is used.
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    # CUlaunchConfig
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _require(code: int, call: str) -> None:
    if code != 0:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError(f"{call} failed: {(name.value or b'unknown').decode()}")


@functools.cache
def load_function(device: int, source: str, entry: str, shared: int, defines: tuple[tuple[str, int], ...]) -> int:
    """Compile and load a kernel on a device, once.

    Args:
        device: CUDA device index.
        source: ``.cu`` file of this package, without suffix.
        entry: the kernel's name.
        shared: bytes of dynamic shared memory that it will be launched with.
        defines: macros.

    Returns:
        A ``CUfunction``.
    """
    cubin = compile_cubin(source, **dict(defines))
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # makes torch's context current
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _require(_driver().cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
        _require(_driver().cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), "cuModuleGetFunction")
        _require(_driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), "cuFuncSetAttribute")
    if function.value is None:
        raise RuntimeError(f"cuModuleGetFunction gave no function for {entry}")
    return function.value


def launch(
    function: int,
    device: torch.device,
    grid: tuple[int, int, int],
    threads: int,
    shared: int,
    parameters: ctypes.Structure,
) -> None:
    """Launch a kernel of one struct parameter on the current stream, programmatically after the kernel before it.

    The kernel must execute ``griddepcontrol.wait`` in every thread before it touches memory.
    """
    attribute = _Attribute(id=_PROGRAMMATIC, value=1)
    config = _Config(
        grid=(ctypes.c_uint * 3)(*grid),
        block=(ctypes.c_uint * 3)(threads, 1, 1),
        shared=shared,
        stream=torch.cuda.current_stream(device).cuda_stream,
        attributes=ctypes.pointer(attribute),
        attribute_count=1,
    )
    arguments: Any = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
    with torch.cuda.device(device):
        _require(
            _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), arguments, None),
            "cuLaunchKernelEx",
        )
