"""A builder of small Kineto traces: what a test needs to see, and nothing else.

Times are µs, as in the files; a span at 0 is one without a time, from which nothing is counted. A decode step of one
cast, launched by an op within a Python function:

    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 1, 100)
    trace.frame("model.py(10): forward", 5, 90)
    trace.call("cast_kernel", at=10, duration=850, op="aten::copy_", dims=[[8, 576], [8, 576]],
               types=["c10::BFloat16", "c10::Float8_e4m3fn"], grid=(9, 1, 1))
    path = trace.save(tmp_path / "trace.json")
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOST = 100
"""Process of the host's spans."""
MAIN = 1
"""The thread that launches, unless a test says otherwise."""
LAUNCH_US = 4.0
"""Time that a launch takes the host."""
LATENCY_US = 6.0
"""Time from the start of a launch to the kernel's, on a stream that is free."""
H200 = {"id": 0, "name": "NVIDIA H200"}


class Kineto:
    """A trace under construction: one method a kind of event, and `call` for an op, its launch and its kernel."""

    def __init__(self, *, device: Mapping[str, Any] | None = H200, **header: Any) -> None:
        self.header: dict[str, Any] = {"schemaVersion": 1, **header}
        if device is not None:
            self.header["deviceProperties"] = [dict(device)]
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._free_at: dict[tuple[int, int], float] = {}

    def span(
        self,
        category: str,
        name: str,
        start: float,
        duration: float,
        *,
        pid: int | str = HOST,
        tid: int | str = MAIN,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Add any span."""
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration}
        self.events.append(event if args is None else event | {"args": dict(args)})

    def annotation(self, name: str, start: float, duration: float, *, tid: int = MAIN) -> None:
        """Add a named range on the host, such as a step."""
        self.span("user_annotation", name, start, duration, tid=tid)

    def frame(self, name: str, start: float, duration: float, *, tid: int = MAIN) -> None:
        """Add a Python function: ``file.py(12): function``."""
        self.span("python_function", name, start, duration, tid=tid)

    def op(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        dims: Sequence[Any] | None = None,
        types: Sequence[str] | None = None,
        tid: int = MAIN,
        external_id: int | None = None,
    ) -> None:
        """Add an op; without `dims` its shapes were not recorded."""
        args: dict[str, Any] = {}
        if external_id is not None:
            args["External id"] = external_id
        if dims is not None:
            args |= {"Input Dims": list(dims), "Input type": list(types or [""] * len(dims))}
        self.span("cpu_op", name, start, duration, tid=tid, args=args)

    def launch(
        self,
        start: float,
        duration: float = LAUNCH_US,
        *,
        name: str = "cudaLaunchKernel",
        category: str = "cuda_runtime",
        correlation: int | None = None,
        kernel: str | None = None,
        tid: int = MAIN,
    ) -> int:
        """Add a runtime call and return its correlation: a new one, unless it is given.

        ROCm's launches name their `kernel`.
        """
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        args: dict[str, Any] = {"correlation": correlation}
        if kernel is not None:
            args["kernel"] = kernel
        self.span(category, name, start, duration, tid=tid, args=args)
        return correlation

    def kernel(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        correlation: int | None = None,
        stream: int = 7,
        device: int = 0,
        grid: Sequence[int] | None = (1, 1, 1),
        block: Sequence[int] | None = (128, 1, 1),
        external_id: int | None = None,
    ) -> None:
        """Add a kernel."""
        args: dict[str, Any] = {"device": device, "stream": stream}
        if correlation is not None:
            args["correlation"] = correlation
        if external_id is not None:
            args["External id"] = external_id
        if grid is not None and block is not None:
            args |= {"grid": list(grid), "block": list(block)}
        self.span("kernel", name, start, duration, pid=device, tid=stream, args=args)
        self._occupy(device, stream, start + duration)

    def memcpy(
        self,
        start: float,
        duration: float,
        *,
        size: int,
        name: str = "Memcpy DtoH (Device -> Pinned)",
        correlation: int | None = None,
        stream: int = 7,
        device: int = 0,
    ) -> None:
        """Add a copy of `size` bytes."""
        args: dict[str, Any] = {"device": device, "stream": stream, "bytes": size}
        if correlation is not None:
            args["correlation"] = correlation
        self.span("gpu_memcpy", name, start, duration, pid=device, tid=stream, args=args)
        self._occupy(device, stream, start + duration)

    def memset(
        self, start: float, duration: float, *, size: int, correlation: int | None = None, stream: int = 7
    ) -> None:
        """Add a fill of `size` bytes."""
        args: dict[str, Any] = {"device": 0, "stream": stream, "bytes": size}
        if correlation is not None:
            args["correlation"] = correlation
        self.span("gpu_memset", "Memset (Device)", start, duration, pid=0, tid=stream, args=args)
        self._occupy(0, stream, start + duration)

    def call(
        self,
        name: str,
        *,
        at: float,
        duration: float,
        op: str | None = None,
        dims: Sequence[Any] | None = None,
        types: Sequence[str] | None = None,
        grid: Sequence[int] | None = (1, 1, 1),
        block: Sequence[int] | None = (128, 1, 1),
        stream: int = 7,
        tid: int = MAIN,
    ) -> float:
        """Launch a kernel at a time and return when it ends; its stream runs it as soon as it is free.

        With `op`, an op of that name encloses the launch: from 1 µs before it to 1 µs after it.
        """
        if op is not None:
            self.op(op, at - 1, LAUNCH_US + 2, dims=dims, types=types, tid=tid)
        correlation = self.launch(at, tid=tid)
        start = max(at + LATENCY_US, self._free_at.get((0, stream), 0.0))
        self.kernel(name, start, duration, correlation=correlation, stream=stream, grid=grid, block=block)
        return start + duration

    def replay(
        self, kernels: Sequence[tuple[str, float, Sequence[int]]], *, at: float, host: float = 50.0, stream: int = 7
    ) -> float:
        """Launch a CUDA graph at a time and return when it ends: (name, duration, grid) of its kernels, in order.

        They all carry the correlation of the one launch, which takes the host `host` µs.
        """
        correlation = self.launch(at, host, name="cudaGraphLaunch")
        end = max(at + LATENCY_US, self._free_at.get((0, stream), 0.0))
        for name, duration, grid in kernels:
            self.kernel(name, end, duration, correlation=correlation, stream=stream, grid=grid)
            end += duration
        return end

    def document(self) -> dict[str, Any]:
        """Return the trace as the JSON that a file holds."""
        return {**self.header, "traceEvents": self.events}

    def save(self, path: Path) -> Path:
        """Write the trace, compressed where the name ends in `.gz`, and return its path."""
        text = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        return path

    def _occupy(self, device: int, stream: int, until: float) -> None:
        self._free_at[device, stream] = max(until, self._free_at.get((device, stream), 0.0))
