"""Recorded calls lined up with the ways through a function: each case is a source, a recording, and what it must be.

The line that made the last recorded call carries `# <-`; where several cannot be told apart, each carries it.
"""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from tests.recorded_calls import found_in, stack_in, why_not_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CASES: dict[str, tuple[str, str] | tuple[str, str, str]] = {
    "k and v in one function, the cast of v": (
        """
        def f(self, q, pool, layer):
            k = pool.get_key_buffer(layer).to(q.dtype)
            v = pool.get_value_buffer(layer).to(q.dtype)  # <-
            return self.run(q, k, v)
        """,
        "get_key_buffer() to get_value_buffer() to",
    ),
    "k and v in one function, the cast of k": (
        """
        def f(self, q, pool, layer):
            k = pool.get_key_buffer(layer).to(q.dtype)  # <-
            v = pool.get_value_buffer(layer).to(q.dtype)
            return self.run(q, k, v)
        """,
        "get_key_buffer() to",
    ),
    "a branch that was not taken": (
        """
        def f(self, q, k):
            if k is not None:
                k = k.to(q.dtype)
            q = q.contiguous()
            return q.to(self.dtype)  # <-
        """,
        "contiguous to",
    ),
    "a branch that was taken": (
        """
        def f(self, q, k):
            if k is not None:
                k = k.to(q.dtype)
                q = q.contiguous()
            return q.to(self.dtype)  # <-
        """,
        "to contiguous to",
    ),
    "two branches that do the same": (
        """
        def f(self, q, k):
            if self.ragged:
                k = k.to(q.dtype)  # <-
            else:
                k = k.to(self.dtype)  # <-
            return k
        """,
        "to",
    ),
    "two branches that differ only in what follows": (
        """
        def f(self, q, k):
            if self.ragged:
                k = k.to(q.dtype)
                k = k.view(-1)
            else:
                k = k.to(self.dtype)  # <-
                k = k.squeeze(2)
            return k
        """,
        "to",
        "squeeze",
    ),
    "a branch in which one more call would have followed": (
        """
        def f(self, q, k):
            if self.ragged:
                return k.to(q.dtype).contiguous()
            return k.to(self.dtype)  # <-
        """,
        "to",
        "",
    ),
    "an early return": (
        """
        def f(self, q, k):
            if self.ragged:
                return k.to(q.dtype)
            k = k.view(-1)
            return k.to(self.dtype)  # <-
        """,
        "view to",
    ),
    "the second pass of a loop": (
        """
        def f(self, parts):
            for part in parts:
                part = part.to(self.dtype)  # <-
                self.out.append(part.view(-1))
            return parts.to(self.device)
        """,
        "to view append to",
        "view append to",
    ),
    "after a loop": (
        """
        def f(self, parts):
            for part in parts:
                part = part.to(self.dtype)
                self.out.append(part.view(-1))
            return parts.to(self.device)  # <-
        """,
        "to view append to view append to",
        "",
    ),
    "two casts in the body of a loop": (
        """
        def f(self, parts):
            for part in parts:
                a = part.to(self.dtype)
                b = part.to(self.device)  # <-
        """,
        "to to to to",
    ),
    "a loop that is left early": (
        """
        def f(self, parts):
            while True:
                part = parts.pop()
                if part is None:
                    break
                part.to(self.dtype)
            return self.last.to(self.dtype)  # <-
        """,
        "pop to pop to",
        "",
    ),
    "a pass that is cut short": (
        """
        def f(self, parts):
            for part in parts:
                x = part.view(-1)
                if x.numel() == 0:
                    continue
                x.to(self.dtype)  # <-
        """,
        "view numel view numel to",
    ),
    "a conditional expression": (
        """
        def f(self, q, k):
            k = k.to(q.dtype) if self.cast else k.contiguous()
            return k.to(self.device)  # <-
        """,
        "contiguous to",
    ),
    "the cast of a conditional expression": (
        """
        def f(self, q, k):
            k = k.to(q.dtype) if self.cast else k.contiguous()  # <-
            return k.to(self.device)
        """,
        "to",
        "to",
    ),
    "what `and` does not come to": (
        """
        def f(self, q, k):
            ready = self.is_ready() and q.to(self.dtype).any()
            return k.to(q.dtype)  # <-
        """,
        "is_ready() to",
        "",
    ),
    "a comprehension, as a loop": (
        """
        def f(self, parts):
            casts = [part.to(self.dtype) for part in parts if part.any()]  # <-
            return torch.cat(casts).to(self.device)
        """,
        "any to any any to",
        "cat to",
    ),
    "a comprehension, as a function": (
        """
        def f(self, parts):
            casts = [part.to(self.dtype) for part in parts]  # <-
            return torch.cat([c.to(self.device) for c in casts])
        """,
        "<listcomp>()",
        "<listcomp>() cat",
    ),
    "the source of a comprehension is the function's own": (
        """
        def f(self, parts):
            casts = [part.view(-1) for part in parts.to(self.dtype)]  # <-
            return torch.cat(casts).to(self.device)
        """,
        "to",
        "<listcomp>() cat to",
    ),
    "a generator": (
        """
        def f(self, parts):
            a, b = (part.to(self.dtype) for part in parts)  # <-
            return a.to(b)
        """,
        "<genexpr>() <genexpr>()",
    ),
    "in a with block": (
        """
        def f(self, x):
            with torch.cuda.stream(self.stream), self.lock:
                x = x.to(self.dtype)  # <-
            return x.to(self.device)
        """,
        "stream() __enter__() __enter__() to",
        "__exit__() __exit__() to",
    ),
    "after a with block": (
        """
        def f(self, x):
            with torch.no_grad():
                x = x.to(self.dtype)
            return x.to(self.device)  # <-
        """,
        "__init__() __enter__() to __exit__() to",
    ),
    "a handler": (
        """
        def f(self, x):
            try:
                x = self.fast(x)
                x = x.to(self.dtype)
            except ValueError:
                x = x.view(-1)
                x = x.to(self.device)  # <-
            return x
        """,
        "fast() view to",
    ),
    "what runs at last, on the way out": (
        """
        def f(self, x):
            try:
                return self.fast(x)
            finally:
                self.last = x.to(self.dtype)  # <-
            return x.to(self.device)
        """,
        "fast() to",
        "",
    ),
    "a statement over several lines": (
        """
        def f(self, q, pool):
            q = q.to(
                self.dtype,
            )
            k = (  # <-
                pool.get_key_buffer()
                .to(
                    q.dtype
                )
            )
        """,
        "to get_key_buffer() to",
    ),
    "chained casts": (
        """
        def f(self, x):
            x = x.to(self.dtype).to(self.device)
            return x.to(torch.half).contiguous().to(torch.float)  # <-
        """,
        "to to to contiguous to",
    ),
    "a cast as an argument comes before the call": (
        """
        def f(self, x, y):
            self.run(x.to(self.dtype), y)
            return self.run(x, y.to(self.dtype))  # <-
        """,
        "to run() to",
    ),
    "keywords come after arguments": (
        """
        def f(self, x, y):
            z = self.make(x.view(-1), out=y.to(self.dtype))  # <-
            return z.to(self.device)
        """,
        "view to",
        "make() to",
    ),
    "the value of an assignment comes before its target": (
        """
        def f(self, x, i):
            self.buffer[i.to(torch.long)] = x.contiguous()  # <-
            self.buffer[i] = x.to(self.dtype)
        """,
        "contiguous to +index_put_",
    ),
    "an op that a subscript runs": (
        """
        def f(self, x, i):
            y = x + i
            z = x[i]  # <-
            return y * z
        """,
        "+add +index",
    ),
    "an op of an assignment to a slice": (
        """
        def f(self, x, i):
            self.buffer[i] = x  # <-
            self.buffer[i] += x
        """,
        "+index_put_",
        "+index +add_ +index_put_",
    ),
    "an operator, and one in place": (
        """
        def f(self, x, y):
            x = x + y
            x += y  # <-
            return x + y
        """,
        "+add +add_",
    ),
    "an op under another name than the method": (
        """
        def f(self, x, y):
            y = y.contiguous()
            return x.half()  # <-
        """,
        "+contiguous +to",
    ),
    "modules of one class, one after the other": (
        """
        def f(self, x):
            q = self.q_proj(x)
            k = self.k_proj(x)  # <-
            v = self.v_proj(x)
        """,
        "__getattr__() Linear: __getattr__() Linear:",
        "__getattr__() Linear:",
    ),
    "a decorated helper is recorded as its wrapper": (
        """
        def f(self, x):
            x = x.to(self.dtype)
            x = self.widen(x)  # <-
            return x.to(self.device)
        """,
        "to decorate_context()",
        "to",
    ),
    "a decorated helper before the cast": (
        """
        def f(self, x):
            if self.cast:
                x = x.to(self.dtype)
            x = self.widen(x)
            return x.to(self.device)  # <-
        """,
        "wrapper() to",
    ),
    "a function imported under another name": (
        """
        from torch import empty_like as like
        def f(self, x):
            y = x.to(self.dtype)
            return like(y)  # <-
        """,
        "to empty_like",
    ),
    "a method kept in a variable": (
        """
        def f(self, x):
            cast = x.to
            y = self.scale(x)
            return cast(self.dtype)  # <-
        """,
        "scale() to",
    ),
    "a function that is a parameter": (
        """
        def f(x, convert):
            y = x.view(-1)
            return convert(y)  # <-
        """,
        "view to",
    ),
    "a property": (
        """
        def f(self, x):
            if self.is_ready:
                return x.to(self.dtype)  # <-
            return x.contiguous().to(self.device)
        """,
        "is_ready() to",
    ),
    "a class that is made": (
        """
        def f(self, x):
            y = Batch(x.view(-1))
            return y.x.to(self.dtype)  # <-
        """,
        "view __init__() to",
    ),
    "types and other calls of no function are not recorded": (
        """
        def f(self, xs):
            n = int(max(len(xs), 1))
            for i, x in enumerate(list(xs)):
                x.to(range(n))  # <-
            return xs.to(self.dtype)
        """,
        "len max to",
        "to",
    ),
    "a match": (
        """
        def f(self, x):
            match self.mode:
                case "a":
                    return x.view(-1).to(self.dtype)
                case "b" if self.ready():
                    return x.to(self.dtype)  # <-
            return x.contiguous().to(self.dtype)
        """,
        "ready() to",
    ),
    "a lambda": (
        """
        def f(self, x):
            cast = lambda t: t.to(self.dtype)
            return cast(x.to(self.device))  # <-
        """,
        "to <lambda>()",
    ),
    "a nested function is called where it is used": (
        """
        def f(self, x):
            def widen(t):
                return t.to(self.dtype)

            x = x.to(self.device)
            return widen(x)  # <-
        """,
        "to widen()",
    ),
    "an import within a function": (
        """
        def f(self, x):
            from tools import scale
            x = scale(x)
            return x.to(self.dtype)  # <-
        """,
        "_handle_fromlist() scale() to",
    ),
    "what Python calls in between, such as a finaliser": (
        """
        def f(self, x):
            x = x.to(self.dtype)
            x = x.view(-1)
            return x.to(self.device)  # <-
        """,
        "to __del__() view to",
    ),
    "a walrus and a test": (
        """
        def f(self, x):
            if (y := x.to(self.dtype)).any():
                return y.to(self.device)  # <-
            return x
        """,
        "to any to",
    ),
    "an f-string": (
        """
        def f(self, x):
            log(f"{x.to(self.dtype)}")
            return x.to(self.device)  # <-
        """,
        "to __format__() log() to",
    ),
}


def lines_of(source: str) -> tuple[str, tuple[int, ...]]:
    text = dedent(source).lstrip("\n")
    return text, tuple(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# <-"))


def begin_of(text: str) -> int:
    (line,) = (number for number, line in enumerate(text.splitlines(), 1) if line.startswith("def f("))
    return line


@pytest.mark.parametrize("name", CASES)
def test_the_statement_is_the_one_that_made_the_call(name: str, tmp_path: Path) -> None:
    source, calls, *later = CASES[name]
    text, lines = lines_of(source)
    (tmp_path / "m.py").write_text(text)
    after: Sequence[str] | None = later[0].split() if later else None
    found = found_in(tmp_path, stack_in("m.py", *calls.split(), line=begin_of(text), later=after))
    assert found.lines == lines
    assert (found.text is None) == (len(lines) > 1)


NESTED = """\
def outer(self, xs):
    first = self.apply(lambda t: t.view(-1).to(self.dtype), xs)
    second = [x.contiguous().to(self.dtype) for x in xs]
    return sum(x.to(self.device) for x in xs)
"""


@pytest.mark.parametrize(
    ("function", "line", "calls", "text"),
    [
        ("<lambda>", 2, ("view", "to"), "t.view(-1).to(self.dtype)"),
        ("<listcomp>", 3, ("contiguous", "to", "contiguous", "to"), None),
        ("<genexpr>", 4, ("to",), None),
    ],
)
def test_functions_without_a_name(
    function: str, line: int, calls: tuple[str, ...], text: str | None, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(NESTED)
    found = found_in(tmp_path, stack_in("m.py", *calls, line=line, function=function))
    assert found.lines == (line,)
    assert text is None or found.text == text
    assert "(it begins on line" in why_not_in(tmp_path, stack_in("m.py", "to", line=1, function=function))


def test_two_functions_without_a_name_on_one_line_are_both_looked_at(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(a):\n    return a(lambda t: t.to(1)), a(lambda t: t.view(1).to(2))\n")
    found = found_in(tmp_path, stack_in("m.py", "view", "to", line=2, function="<lambda>"))
    assert found.lines == (2,)
