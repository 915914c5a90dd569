"""Runs in the interpreter that is asked about, not in stepscope: says what is installed there and which GPUs it sees.

Only the standard library, of Python 3.8 on. It imports no package: `find_spec` of a top-level name only looks.
The driver is asked through its own library, which obeys CUDA_VISIBLE_DEVICES as torch does; no GPU gets a context.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import sys

_COMPUTE_CAPABILITY = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR."""


def installed(wanted: list[str]) -> dict[str, str]:
    """Return name and version of the distributions whose names begin with one of these."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # a broken one says nothing
            name = str(distribution.metadata["Name"]).lower().replace("_", "-")
            if name.startswith(tuple(wanted)):
                found.setdefault(name, str(distribution.version))  # the first on the path is the one imported
    return found


def folders(modules: list[str]) -> dict[str, str]:
    """Return where an import of these packages would find them."""
    found = {}
    for module in modules:
        with contextlib.suppress(Exception):  # a finder can raise anything
            spec = importlib.util.find_spec(module)
            places = list(spec.submodule_search_locations or ()) if spec is not None else []
            if places:
                found[module] = str(places[0])
    return found


def gpus() -> tuple[str | None, list[dict[str, object]], str | None]:
    """Return the driver's CUDA version and the GPUs; why there are none, where there are none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, [], f"the NVIDIA driver's library cannot be loaded ({error})"
    number, name, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    failed = cuda.cuInit(0)
    driver = (
        None if cuda.cuDriverGetVersion(ctypes.byref(number)) else f"{number.value // 1000}.{number.value % 1000 // 10}"
    )
    if failed or cuda.cuDeviceGetCount(ctypes.byref(number)):
        return driver, [], f"the NVIDIA driver shows no GPU (error {failed})"
    found: list[dict[str, object]] = []
    for index in range(number.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceGetName(name, 256, device):
            continue
        capability = []
        for which in _COMPUTE_CAPABILITY:
            cuda.cuDeviceGetAttribute(ctypes.byref(number), which, device)
            capability.append(str(number.value))
        known = not cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        found.append(
            {
                "name": name.value.decode("utf-8", "replace"),
                "compute_capability": ".".join(capability),
                "memory_bytes": size.value if known else None,
            }
        )
    return driver, found, None if found else "the NVIDIA driver shows no GPU"


def main() -> None:
    """Print one line of JSON, marked, because start-up files of the environment may print too."""
    asked = json.loads(sys.argv[1])
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated and asked["first_path"] is not None:
        sys.path[0] = asked["first_path"]
    driver, found, why_none = gpus()
    answer = {
        "version": sys.version.split()[0],
        "executable": sys.executable,
        "prefix": sys.prefix,
        "distributions": installed(asked["distributions"]),
        "folders": folders(asked["modules"]),
        "driver_cuda": driver,
        "gpus": found,
        "why_no_gpus": why_none,
    }
    text = asked["mark"] + json.dumps(answer)
    sys.stdout.flush()
    os.write(1, f"\n{text}\n".encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    main()
