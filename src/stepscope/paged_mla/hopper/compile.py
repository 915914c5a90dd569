"""CUDA C++ to a cubin with NVRTC, which comes with CUDA builds of torch: no nvcc and no host compiler needed."""

from __future__ import annotations

import ctypes
import functools
import os
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

ARCHITECTURE = "sm_90a"
_HEADER = "common.cuh"
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class CompilerUnavailableError(RuntimeError):
    """NVRTC was not found."""


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """Load NVRTC: from the loader's path, else from the ``nvidia`` wheels beside torch.

    Raises:
        CompilerUnavailableError: it is in neither place.
    """
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*")):
            try:
                for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(os.fspath(builtins))  # found by name once loaded
                return ctypes.CDLL(os.fspath(path))
            except OSError:
                continue
    raise CompilerUnavailableError(
        "NVRTC was not found; accepted: libnvrtc.so.12 or .13 on the loader's path, or the package nvidia-cuda-nvrtc"
    )


@functools.cache
def compile_cubin(source: str, **defines: int) -> bytes:
    """Compile one of this package's ``.cu`` files.

    Args:
        source: file name without suffix.
        defines: macros.

    Returns:
        A cubin for sm_90a.

    Raises:
        CompilerUnavailableError: there is no NVRTC.
        RuntimeError: the compiler refused the source; the message is its log.
    """
    library = nvrtc()
    folder = files(__package__)
    text = folder.joinpath(f"{source}.cu").read_bytes()
    header = (ctypes.c_char_p * 1)(folder.joinpath(_HEADER).read_bytes())
    header_name = (ctypes.c_char_p * 1)(_HEADER.encode())
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    encoded = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), text, f"{source}.cu".encode(), 1, header, header_name)
    _require(created, source)
    try:
        if library.nvrtcCompileProgram(program, len(options), encoded) != 0:
            raise RuntimeError(f"NVRTC refused {source}.cu:\n{_log(library, program)}")
        size = ctypes.c_size_t()
        _require(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), source)
        cubin = ctypes.create_string_buffer(size.value)
        _require(library.nvrtcGetCUBIN(program, cubin), source)
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


def _require(code: int, source: str) -> None:
    if code != 0:
        raise RuntimeError(f"NVRTC failed on {source}.cu with code {code}")
