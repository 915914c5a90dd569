"""Write a realistic Kineto trace of any size: layout, shapes, stacks, kernels, flows and graph replays of real ones.

    python benchmarks/generate_trace.py 500MB /tmp/trace.json

The steps alternate: two eager ones (Python frames, ops with shapes, a launch and a kernel with its flow for each op),
then one replayed graph (hundreds of kernels of one launch). Event by event the text is what torch 2.11 writes, so that
the share of each kind of event and its size are those of a real trace. The same size gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
LAYERS = 78
KERNELS_A_GRAPH = 37 * LAYERS

HEADER = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
    ],
      "with_stack": 1,
      "record_shapes": 1,
      "cuda_driver_version": 13000,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
TRAILER = '\n  ],\n  "traceName": "trace.json"\n}\n'

FRAME = """  {
    "ph": "X", "cat": "python_function", "name": "%s", "pid": 412, "tid": 412,
    "ts": %s, "dur": %s,
    "args": {
      "Python parent id": %d, "Python id": %d, "Ev Idx": %d
    }
  }"""
OP = """  {
    "ph": "X", "cat": "cpu_op", "name": "%s", "pid": 412, "tid": 412,
    "ts": %s, "dur": %s,
    "args": {
      "External id": %d,"Record function id": 0, "Concrete Inputs": ["", "6", "False", "False", ""], \
"Input type": %s, "Input Strides": %s, "Input Dims": %s, "Ev Idx": %d
    }
  }"""
LAUNCH = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "%s", "pid": 412, "tid": 412,
    "ts": %s, "dur": %s,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  }"""
KERNEL = """  {
    "ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7,
    "ts": %s, "dur": %s,
    "args": {
      "External id": %d,
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": %d,
      "registers per thread": 32,
      "shared memory": 0,
      "blocks per SM": 0.242424,
      "warps per SM": 0.969697,
      "grid": [%d, 1, 1],
      "block": [128, 1, 1],
      "est. achieved occupancy %%": 2
    }
  }"""
FLOW_START = """  {
    "ph": "s", "id": %d, "pid": 412, "tid": 412, "ts": %s,
    "cat": "ac2g", "name": "ac2g"
  }"""
FLOW_END = """  {
    "ph": "f", "id": %d, "pid": 0, "tid": 7, "ts": %s,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }"""
ANNOTATION = """  {
    "ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 412, "tid": 412,
    "ts": %s, "dur": %s,
    "args": {
      "External id": %d,"Record function id": 0, "Ev Idx": %d
    }
  }"""

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
)
WORK = (
    ("aten::_fused_rms_norm", '["c10::BFloat16", "ScalarList", "", ""]', "[[1, 6144], [], [], []]", NORM, 4, 1),
    ("aten::mm", '["c10::BFloat16", "c10::BFloat16"]', "[[1, 6144], [6144, 2048]]", GEMM, 11, 32),
    ("aten::add", '["c10::BFloat16", "c10::BFloat16", "Scalar"]', "[[1, 6144], [1, 6144], []]", ELEMENTWISE, 2, 6),
    ("aten::mm", '["c10::BFloat16", "c10::BFloat16"]', "[[1, 2048], [2048, 6144]]", GEMM, 9, 32),
)
CALLS = (
    "torch/nn/modules/module.py(1783): _call_impl",
    "nn.Module: Layer_%d",
    "sglang/srt/models/deepseek_v2.py(2204): forward",
    "<built-in method linear of type object at 0x7f7125cbc3c0>",
)


class Writer:
    """Writes events one after another and counts bytes, ids and time."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.bytes = stream.write(HEADER.encode())
        self.ids = 0
        self.ns = 5_095_001_951_515_395  # the trace's clock; its µs have 3 decimals, relative to the base time
        self.gpu_ns = self.ns
        self._first = True

    def event(self, text: str) -> None:
        """Write one event."""
        self.bytes += self._stream.write((text if self._first else ",\n" + text).encode())
        self._first = False

    def next_id(self) -> int:
        """Return a new number for ids and correlations."""
        self.ids += 1
        return self.ids

    def close(self) -> None:
        """End the document."""
        self._stream.write(TRAILER.encode())


def us(ns: int) -> str:
    """Write ns as Kineto writes times: µs with 3 decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def write_trace(stream: BinaryIO, size: int) -> int:
    """Write whole steps until the trace has `size` bytes, and return how many steps there are."""
    writer = Writer(stream)
    steps = 0
    while writer.bytes < size:
        if steps % 3 == 2:
            _graph_step(writer)
        else:
            _eager_step(writer)
        steps += 1
    writer.close()
    return steps


def _eager_step(writer: Writer) -> None:
    begin = writer.ns
    body = list(_layers(writer))
    writer.event(ANNOTATION % (us(begin - 500), us(writer.ns - begin + 1000), writer.next_id(), writer.ids))
    for text in body:
        writer.event(text)
    writer.ns += 20_000


def _layers(writer: Writer) -> Iterator[str]:
    for layer in range(LAYERS):
        for op, types, shapes, kernel, gpu_us, grid in WORK:
            begin = writer.ns
            for depth, call in enumerate(CALLS):
                name = call % layer if "%d" in call else call
                number = writer.next_id()
                yield FRAME % (name, us(begin + 200 * depth), us(30_000 - 400 * depth), number - 1, number, number)
            external = writer.next_id()
            yield OP % (op, us(begin + 1500), us(22_000), external, types, "[[6144, 1], [], [], []]", shapes, external)
            yield from _launched(writer, begin + 3000, external, (kernel, gpu_us, grid))
            writer.ns += 31_000


def _launched(writer: Writer, at: int, external: int, work: tuple[str, int, int]) -> Iterator[str]:
    kernel, gpu_us, grid = work
    correlation = writer.next_id()
    yield LAUNCH % ("cudaLaunchKernel", us(at), us(6_500), external, correlation)
    start = max(at + 8_000, writer.gpu_ns + 900)
    duration = gpu_us * 1000 + correlation % 89
    yield KERNEL % (kernel, us(start), us(duration), external, correlation, grid)
    yield FLOW_START % (correlation, us(at))
    yield FLOW_END % (correlation, us(start))
    writer.gpu_ns = start + duration


def _graph_step(writer: Writer) -> None:
    begin = writer.ns
    external, correlation = writer.next_id(), writer.next_id()
    writer.event(ANNOTATION % (us(begin), us(4_000_000), external, external))
    writer.event(LAUNCH % ("cudaGraphLaunch", us(begin + 10_000), us(3_400_000), external, correlation))
    writer.gpu_ns = max(writer.gpu_ns, begin + 3_420_000)
    for index in range(KERNELS_A_GRAPH):
        _, _, _, kernel, gpu_us, grid = WORK[index % len(WORK)]
        start = writer.gpu_ns + 416
        writer.event(KERNEL % (kernel, us(start), us(gpu_us * 1000), external, correlation, grid))
        writer.gpu_ns = start + gpu_us * 1000
    writer.ns = max(begin + 4_020_000, writer.gpu_ns)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `500MB`.

    Raises:
        ValueError: it has no known unit.
    """
    for unit, scale in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * scale)
    raise ValueError(f"{text}: give a size in {', '.join(UNITS)}")


def main() -> None:
    """Read the command line and write the trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("size", type=parse_size, help="such as 50MB, 500MB, 5GB")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    with arguments.output.open("wb", buffering=1 << 20) as stream:
        steps = write_trace(stream, arguments.size)
    sys.stderr.write(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes, {steps:,} steps\n")


if __name__ == "__main__":
    main()
