"""Which statement of a source file made a recorded call, and what is said where none is found."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from tests.recorded_calls import call, found_in, stack_in, why_not_in

from stepscope.pipeline.attribute.stacks import Call, CallKind, Calls, Stack, StackFrame

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.pipeline.attribute.statement import Statement

BACKEND = "sglang/srt/layers/attention/flashinfer_mla_backend.py"
SOURCE = dedent('''\
    """A backend like SGLang's."""
    import torch


    class Backend:
        def forward_extend(self, q, layer, pool):
            k_buf = pool.get_key_buffer(layer.layer_id).to(q.dtype)
            return self.wrapper.run(q, k_buf)

        @torch.no_grad()
        def forward_decode(
            self, q, k, v, layer, forward_batch, save_kv_cache=True, q_rope=None, k_rope=None
        ):
            if k is not None and save_kv_cache:
                forward_batch.token_to_kv_pool.set_mla_kv_buffer(layer, forward_batch.out_cache_loc, k, k_rope)
            q_nope = q.view(-1, layer.tp_q_head_num, layer.v_head_dim)
            q_rope = q_rope.view(-1, layer.tp_q_head_num).to(torch.float32)
            k_buffer = forward_batch.token_to_kv_pool.get_key_buffer(layer.layer_id).to(
                q.dtype
            )
            o = q_nope.new_empty(q_nope.shape).to(q.dtype)
            return self.wrapper.run(q_nope, q_rope, k_buffer, out=o)

        async def fetch(self, pool):
            async with pool.lock() as held:
                return held.get_key_buffer().to(torch.bfloat16)

        def outer(self, pool):
            def inner(x):
                return x.to(torch.bfloat16)

            first = pool.first()
            return inner(first).to(torch.float16)

        def twice(self, a, b):
            a = a.to(torch.bfloat16)
            b = b.to(torch.bfloat16)
            return a + b

        def inline(self, pool):
            for part in pool.parts().to(torch.float16):
                if part.to(torch.float32).any():
                    return part
''')


def line_of(text: str) -> int:
    (line,) = (number for number, source in enumerate(SOURCE.splitlines(), 1) if source.strip().startswith(text))
    return line


def backend(folder: Path) -> Path:
    path = folder / BACKEND
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOURCE)
    return folder


def ask(folder: Path, line: int, function: str, *calls: str, was_running: bool = False) -> Statement:
    stack = stack_in(BACKEND, *calls, line=line, function=function, was_running=was_running)
    return found_in(backend(folder), stack)


def test_the_cast_of_the_buffer_is_told_from_the_other_casts_of_its_function(tmp_path: Path) -> None:
    calls = ("set_mla_kv_buffer()", "view", "view", "to", "get_key_buffer()", "to")
    found = ask(tmp_path, line_of("def forward_decode("), "forward_decode", *calls)
    assert found.file == BACKEND
    assert found.lines == (line_of("k_buffer = "),)
    assert found.text is not None
    assert found.text.split() == SOURCE[SOURCE.index("k_buffer = forward") : SOURCE.index("o = q_nope")].split()


@pytest.mark.parametrize(
    ("calls", "statement"),
    [
        (("view", "view", "to"), "q_rope = q_rope.view"),
        (("view", "view", "to", "get_key_buffer()", "to", "new_empty", "to"), "o = q_nope.new_empty"),
    ],
)
def test_the_other_casts_of_the_function_are_found_too(tmp_path: Path, calls: tuple[str, ...], statement: str) -> None:
    assert ask(tmp_path, line_of("def forward_decode("), "forward_decode", *calls).lines == (line_of(statement),)


def test_a_function_begins_at_its_decorator_or_at_its_def(tmp_path: Path) -> None:
    for line in (line_of("@torch.no_grad()"), line_of("def forward_decode(")):
        found = ask(tmp_path, line, "forward_decode", "view", "view", "to", "get_key_buffer()", "to")
        assert found.lines == (line_of("k_buffer = "),)


def test_the_same_call_in_another_function_of_the_file_is_not_meant(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("def forward_extend"), "forward_extend", "get_key_buffer()", "to")
    assert found.text == "k_buf = pool.get_key_buffer(layer.layer_id).to(q.dtype)"


def test_an_async_function(tmp_path: Path) -> None:
    calls = ("lock()", "__aenter__()", "get_key_buffer()", "to")
    found = ask(tmp_path, line_of("async def fetch"), "fetch", *calls)
    assert found.text == "return held.get_key_buffer().to(torch.bfloat16)"


def test_a_nested_functions_body_belongs_to_it_alone(tmp_path: Path) -> None:
    inner = ask(tmp_path, line_of("def inner"), "inner", "to")
    outer = ask(tmp_path, line_of("def outer"), "outer", "first()", "inner()", "to")
    assert inner.text == "return x.to(torch.bfloat16)"
    assert outer.text == "return inner(first).to(torch.float16)"


def test_the_header_of_a_block_is_a_statement(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("def inline"), "inline", "parts()", "to")
    assert (found.lines, found.text) == ((line_of("for part in"),), "pool.parts().to(torch.float16)")


def test_of_two_casts_in_a_row_the_first_call_is_the_first_one(tmp_path: Path) -> None:
    line = line_of("def twice")
    assert ask(tmp_path, line, "twice", "to").lines == (line_of("a = a.to"),)
    assert ask(tmp_path, line, "twice", "to", "to").lines == (line_of("b = b.to"),)


def test_a_frame_that_was_open_when_recording_began_has_the_line_that_it_was_at(tmp_path: Path) -> None:
    line = line_of("q_nope = q.view")
    found = ask(tmp_path, line, "forward_decode", "get_key_buffer()", "to", was_running=True)
    assert found.lines == (line_of("k_buffer = "),)


def test_of_functions_within_each_other_the_innermost_was_running(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(x):\n    def f(x):\n        return x.to(1)\n    return f(x).to(2)\n")
    found = found_in(tmp_path, stack_in("m.py", "to", line=3, was_running=True))
    assert found.text == "return x.to(1)"


def test_methods_of_one_name_in_two_classes_are_told_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "class A:\n    def f(self, x):\n        return x.to(1)\nclass B:\n    def f(self, x):\n        return x.to(2)\n"
    )
    assert found_in(tmp_path, stack_in("m.py", "to", line=2)).text == "return x.to(1)"
    assert found_in(tmp_path, stack_in("m.py", "to", line=5)).text == "return x.to(2)"


def test_a_cast_in_a_helper_of_another_file_is_in_that_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def forward(q, k):\n    k = widen(k, q)\n    return k.to(q.dtype)\n")
    (tmp_path / "helpers.py").write_text("def widen(k, q):\n    return k.to(q.dtype)\n")
    frames = (StackFrame("model.py", 1, "forward"), StackFrame("helpers.py", 1, "widen"))
    found = found_in(tmp_path, Stack(frames, 1, Calls((call("to"),))))
    assert (found.file, found.lines) == ("helpers.py", (2,))


def test_a_place_further_out_than_torchs_own_frames_has_the_call_into_torch(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "def forward(self, x):\n    x = self.norm(x)\n    x = F.relu(self.proj(x))\n    return x\n"
    )
    assert found_in(tmp_path, stack_in("model.py", "Norm:", "Linear:", function="forward")).lines == (3,)
    assert found_in(tmp_path, stack_in("model.py", "Norm:", function="forward")).lines == (2,)


def test_a_module_level_statement(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import torch\n\nx = torch.ones(3)\ny = x.to(torch.half)\n")
    for line, was_running in ((1, False), (4, True)):
        stack = stack_in("run.py", "ones", "to", line=line, function="<module>", was_running=was_running)
        assert found_in(tmp_path, stack).lines == (4,)


# what is said where no statement is found


@pytest.mark.parametrize("line", [1, 2, 5, line_of("def forward_decode(") + 2, line_of("k_buffer = "), 200])
def test_a_changed_file_gives_a_reason_rather_than_a_guess(tmp_path: Path, line: int) -> None:
    stack = stack_in(BACKEND, "get_key_buffer()", "to", line=line, function="forward_decode")
    why = why_not_in(backend(tmp_path), stack)
    assert why == (
        f"{BACKEND} has changed since, or is another version: no function forward_decode is on line {line}"
        f" (it begins on line {line_of('@torch.no_grad()')})"
    )


def test_a_function_that_is_not_there_is_said(tmp_path: Path) -> None:
    why = why_not_in(backend(tmp_path), stack_in(BACKEND, "to", line=6, function="forward_target_verify"))
    assert why.endswith("no function forward_target_verify is on line 6 (none has that name)")


def test_a_frame_that_was_running_outside_every_function_of_its_name_is_of_another_version(tmp_path: Path) -> None:
    stack = stack_in(BACKEND, "to", line=1, function="forward_decode", was_running=True)
    assert "no function forward_decode is on line 1" in why_not_in(backend(tmp_path), stack)


def test_a_call_that_the_function_does_not_make_is_said(tmp_path: Path) -> None:
    line = line_of("def forward_decode(")
    stack = stack_in(BACKEND, "get_key_buffer()", "float", line=line, function="forward_decode")
    assert why_not_in(backend(tmp_path), stack) == (
        f"forward_decode in {BACKEND} holds no call that can have been recorded as float"
    )


def test_a_body_that_explains_nothing_of_what_was_recorded_is_another_versions(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(x):\n    return x.to(1)\n")
    assert why_not_in(tmp_path, stack_in("m.py", "view", "cat", "softmax", "copy_", "sum", "to")) == (
        "m.py has changed since, or is another version: what f called is not what its source there calls"
    )


def test_calls_of_which_none_holds_the_op_are_said(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(x):\n    return x.to(1)\n")
    assert why_not_in(tmp_path, stack_in("m.py")) == "the recorded calls of f in m.py overlap, and the op is in none"


def test_a_function_that_torch_compiled_has_no_statements(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(x):\n    return g(x).to(1)\n")
    stack = Stack((StackFrame("m.py", 1, "f"),), 0, Calls((Call("_fn", CallKind.COMPILED),)))
    assert why_not_in(tmp_path, stack) == "f in m.py ran as torch.compile rewrote it, without its statements"


GENERATORS = """\
def f(xs):
    a = xs.to(1)
    yield a
    b = xs.view(1).to(2)
    c = yield b
    for x in xs:
        yield x.to(3)


async def g(self, x):
    x = x.to(1)
    await self.lock()
    async with self.other as y:
        x = x.to(2)
    async for y in self.queue:
        x = y.view(1).to(3)


def h(xs):
    return sum(
        x.to(1)
        for x in xs
    )
"""


@pytest.mark.parametrize(
    ("line", "function", "calls", "lines"),
    [
        (1, "f", "to", (2,)),
        (3, "f", "view to", (4,)),  # it went on behind its first `yield`
        (5, "f", "to", (7,)),
        (7, "f", "to", (7,)),
        (10, "g", "to", (11,)),
        (12, "g", "lock() __aenter__() to", (14,)),
        (13, "g", "__aenter__() to", (14,)),
        (15, "g", "__anext__() view to", (16,)),
        (20, "<genexpr>", "to", (20,)),
        (21, "<genexpr>", "to", (20,)),
    ],
)
def test_a_generator_that_goes_on_has_the_line_where_it_waited(
    line: int, function: str, calls: str, lines: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(GENERATORS)
    assert found_in(tmp_path, stack_in("m.py", *calls.split(), line=line, function=function)).lines == lines


def test_a_generator_does_not_go_on_where_it_never_waited(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(GENERATORS)
    assert "no function f is on line 4" in why_not_in(tmp_path, stack_in("m.py", "to", line=4))


def test_the_body_of_a_class_is_a_function(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("class A(B):\n    x = y.view(1)\n    z = x.to(1)\n")
    assert found_in(tmp_path, stack_in("m.py", "view", "to", function="A")).lines == (3,)


# stacks that were recorded as text: the line is that of the call


AS_TEXT = """\
class A:
    def forward(self, x):
        x = self.norm(
            x,
        )
        if x.any():
            x = x.to(1)
        return x
"""


def as_text(line: int, function: str = "forward") -> Stack:
    return Stack((StackFrame("m.py", line, function),), 0, None)


@pytest.mark.parametrize(
    ("line", "lines", "text"),
    [(3, (3,), None), (4, (3,), None), (6, (6,), "x.any()"), (7, (7,), "x = x.to(1)")],
)
def test_the_line_of_the_call_names_its_statement(
    tmp_path: Path, line: int, lines: tuple[int, ...], text: str | None
) -> None:
    (tmp_path / "m.py").write_text(AS_TEXT)
    found = found_in(tmp_path, as_text(line))
    assert found.lines == lines
    assert text is None or found.text == text


def test_a_line_outside_the_function_or_without_a_call_is_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(AS_TEXT)
    assert "no function forward is on line 1" in why_not_in(tmp_path, as_text(1))
    assert "no function backward is on line 7" in why_not_in(tmp_path, as_text(7, "backward"))
    assert why_not_in(tmp_path, as_text(8)).endswith("line 8 calls nothing")
