"""Which statement of a source file made a recorded call."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from stepscope.pipeline.attribute.stacks import Stack, StackFrame
from stepscope.pipeline.attribute.statement import Statement, find_statement

if TYPE_CHECKING:
    from pathlib import Path

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


def ask(
    folder: Path, line: int, function: str, *calls: str, file: str = BACKEND, was_running: bool = False
) -> Statement | None:
    path = folder / BACKEND
    if not path.exists():
        path.parent.mkdir(parents=True)
        path.write_text(SOURCE)
    frame = StackFrame(file, line, function, was_running=was_running)
    return find_statement(Stack((StackFrame("server.py", 1, "main"), frame), calls), [folder])


def test_the_cast_of_the_buffer_is_told_from_the_other_casts_of_its_function(tmp_path: Path) -> None:
    calls = ("set_mla_kv_buffer", "view", "view", "to", "get_key_buffer", "to")
    found = ask(tmp_path, line_of("def forward_decode("), "forward_decode", *calls)
    assert found is not None
    assert found.file == BACKEND
    assert found.lines == (line_of("k_buffer = "),)
    assert found.text is not None
    assert found.text.split() == SOURCE[SOURCE.index("k_buffer = forward") : SOURCE.index("o = q_nope")].split()


@pytest.mark.parametrize(
    ("calls", "statement"),
    [
        (("view", "view", "to"), "q_rope = q_rope.view"),
        (("get_key_buffer", "to", "new_empty", "to"), "o = q_nope.new_empty"),
    ],
)
def test_the_other_casts_of_the_function_are_found_too(tmp_path: Path, calls: tuple[str, ...], statement: str) -> None:
    found = ask(tmp_path, line_of("def forward_decode("), "forward_decode", *calls)
    assert found is not None
    assert found.lines == (line_of(statement),)


def test_a_function_begins_at_its_decorator_or_at_its_def(tmp_path: Path) -> None:
    for line in (line_of("@torch.no_grad()"), line_of("def forward_decode(")):
        found = ask(tmp_path, line, "forward_decode", "get_key_buffer", "to")
        assert found is not None
        assert found.lines == (line_of("k_buffer = "),)


def test_the_same_call_in_another_function_of_the_file_is_not_meant(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("def forward_extend"), "forward_extend", "get_key_buffer", "to")
    assert found is not None
    assert found.text == "k_buf = pool.get_key_buffer(layer.layer_id).to(q.dtype)"


def test_an_async_function(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("async def fetch"), "fetch", "lock", "get_key_buffer", "to")
    assert found is not None
    assert found.text == "return held.get_key_buffer().to(torch.bfloat16)"


def test_a_nested_functions_body_belongs_to_it_alone(tmp_path: Path) -> None:
    inner = ask(tmp_path, line_of("def inner"), "inner", "to")
    outer = ask(tmp_path, line_of("def outer"), "outer", "first", "inner", "to")
    assert inner is not None
    assert outer is not None
    assert inner.text == "return x.to(torch.bfloat16)"
    assert outer.text == "return inner(first).to(torch.float16)"


def test_the_header_of_a_block_is_a_statement(tmp_path: Path) -> None:
    loop = ask(tmp_path, line_of("def inline"), "inline", "parts", "to")
    assert loop is not None
    assert (loop.lines, loop.text) == ((line_of("for part in"),), "pool.parts().to(torch.float16)")


def test_two_lines_that_cannot_be_told_apart_are_both_named_without_a_text(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("def twice"), "twice", "to")
    assert found is not None
    assert found.lines == (line_of("a = a.to"), line_of("b = b.to"))
    assert found.text is None


@pytest.mark.parametrize("line", [1, 2, 5, line_of("def forward_decode(") + 2, line_of("k_buffer = "), 200])
def test_a_changed_file_gives_nothing_rather_than_a_guess(tmp_path: Path, line: int) -> None:
    assert ask(tmp_path, line, "forward_decode", "get_key_buffer", "to") is None


def test_calls_before_the_statement_tell_a_bare_cast_from_one_behind_another_call(tmp_path: Path) -> None:
    source = """\
def forward(self, q, pool):
    q = q.to(torch.bfloat16)
    buffer = pool.get_key_buffer().to(q.dtype)
    return run(q, buffer)
"""
    (tmp_path / "model.py").write_text(source)
    frames = (StackFrame("model.py", 1, "forward"),)
    bare = find_statement(Stack(frames, ("to",)), [tmp_path])
    behind = find_statement(Stack(frames, ("to", "get_key_buffer", "to")), [tmp_path])
    assert bare is not None
    assert behind is not None
    assert bare.text == "q = q.to(torch.bfloat16)"
    assert behind.text == "buffer = pool.get_key_buffer().to(q.dtype)"


def test_a_call_that_the_function_does_not_make_gives_nothing(tmp_path: Path) -> None:
    assert ask(tmp_path, line_of("def forward_decode("), "forward_decode", "get_key_buffer", "float") is None


def test_a_frame_that_was_open_when_recording_began_has_the_line_that_it_was_at(tmp_path: Path) -> None:
    found = ask(tmp_path, line_of("q_nope = q.view"), "forward_decode", "get_key_buffer", "to", was_running=True)
    assert found is not None
    assert found.lines == (line_of("k_buffer = "),)


@pytest.mark.parametrize(
    "recorded",
    [
        BACKEND,
        f"/usr/lib/python3/site-packages/{BACKEND}",
        f"../../{BACKEND}",
        BACKEND.replace("/", "\\"),
    ],
)
def test_the_file_is_found_by_the_end_of_its_recorded_path(tmp_path: Path, recorded: str) -> None:
    found = ask(tmp_path, line_of("def forward_decode("), "forward_decode", "get_key_buffer", "to", file=recorded)
    assert found is not None
    assert found.file == recorded


def test_a_file_that_is_not_there_or_is_no_python_gives_nothing(tmp_path: Path) -> None:
    stack = Stack((StackFrame("model.py", 1, "forward"),), ("to",))
    assert find_statement(stack, [tmp_path]) is None
    assert find_statement(stack, []) is None
    (tmp_path / "model.py").write_text("def forward(:\n")
    assert find_statement(stack, [tmp_path]) is None
    (tmp_path / "model.py").write_bytes(b"\xff\xfe\x00 forward")
    assert find_statement(stack, [tmp_path]) is None


def test_the_next_folder_is_tried_where_the_first_holds_another_version(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, source in ((old, "x = 1\n"), (new, "def forward(k):\n    return k.to(int)\n")):
        folder.mkdir()
        (folder / "model.py").write_text(source)
    found = find_statement(Stack((StackFrame("model.py", 1, "forward"),), ("to",)), [old, new])
    assert found is not None
    assert found.text == "return k.to(int)"


def stack_in(file: str, calls: tuple[str, ...] = ("to",)) -> Stack:
    return Stack((StackFrame(file, 1, "f"),), calls)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.py").write_text("def f(x):\n    return x.to()\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "linked.py").symlink_to(tmp_path / "secret" / "key.py")
    (folder / "linked").symlink_to(tmp_path / "secret")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    for file in ("linked.py", "linked/key.py", "../secret/key.py", str(tmp_path / "secret" / "key.py"), "loop.py"):
        assert find_statement(stack_in(file), [folder]) is None
    (folder / "own.py").symlink_to(folder / "real.py")
    (folder / "real.py").write_text("def f(x):\n    return x.to()\n")
    assert find_statement(stack_in("own.py"), [folder]) is not None


@pytest.mark.parametrize("file", ["a" * 300_000 + ".py", "a/" * 500_000 + "b.py", "nul\0.py", "../" * 9 + "x.py", ""])
def test_names_that_no_file_can_have(file: str, tmp_path: Path) -> None:
    assert find_statement(stack_in(file), [tmp_path]) is None


DEEP = {
    "parentheses": "(" * 100_000 + "x" + ")" * 100_000,
    "some parentheses": "(" * 150 + "x" + ")" * 150,
    "calls": "x" + ".to()" * 5000,
    "fewer calls": "x" + ".to()" * 900,
    "signs": "-" * 100_000 + "x",
    "attributes": "x" + ".y" * 100_000,
    "brackets": "[" * 199 + "]" * 199,
}


@pytest.mark.parametrize("what", DEEP)
def test_a_source_nested_too_deep_is_no_traceback(what: str, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(f"def f(x):\n    return {DEEP[what]}.to()\n")
    find_statement(stack_in("deep.py"), [tmp_path])


def test_odd_escapes_in_a_source_are_not_our_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "odd.py").write_text('def f(x):\n    "\\d"\n    assert (x, 1)\n    return x.to() if x is 1 else 0\n')
    assert find_statement(stack_in("odd.py"), [tmp_path]) is not None
    assert not recwarn.list
