"""A trace in which one finding is certain, with names as hostile as a file can make them."""

from __future__ import annotations

from tests.kineto import Kineto

ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202egnp\u200b\r\n\t"
"""What a terminal would obey: colour, title, clearing the screen, text from right to left, a new line."""
MARKUP = "[red]x[/red][link=http://e.vil]y[/link]:smile:"
MARKDOWN = "`c` *b* _i_ | cell | # head <script>alert(1)</script> ![p](http://e.vil) @all ~s~ $m$ &lt;"
HOSTILE = f"{ESCAPES}{MARKUP}{MARKDOWN}"

POOL = [495552, 1, 576]
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"


def pool_cast(*, name: str = "", steps: int = 5, layers: int = 6, with_cast: bool = True) -> Kineto:
    """Decode steps of so many layers: a cast of the whole pool (848.5 µs), an attention and a GEMM each, then a wait.

    `name` stands in every name of the trace: of kernels, functions, files and the device.
    """
    trace = Kineto(device={"id": 0, "name": f"NVIDIA H200{name}"})
    end = 0.0
    for _ in range(steps):
        begin = max(end, 1.0) + 20
        trace.annotation("step[DECODE bs=1]", begin, layers * 40)
        trace.frame(f"lab{name}.py(55): run", begin, layers * 40)
        for layer in range(layers):
            at = begin + 5 + layer * 30
            trace.frame(f"lab{name}.py(19): forward_decode", at - 3, 12)
            if with_cast:
                types = ["c10::BFloat16", "c10::Float8_e4m3fn"]
                kernel = f"{CAST}{name}"
                trace.call(kernel, at=at, duration=848.5, op="aten::copy_", dims=[POOL, POOL], types=types)
            trace.call(f"flash_mla{name}", at=at + 10, duration=40)
            end = trace.call(f"nvjet_gemm{name}", at=at + 18, duration=30)
        waits_from = begin + layers * 35
        trace.launch(waits_from, max(end - waits_from, 1.0), name="cudaStreamSynchronize")
    return trace
