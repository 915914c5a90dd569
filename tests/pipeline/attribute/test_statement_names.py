"""Recorded calls lined up with sources that know them by another name, or by none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.recorded_calls import check_case, found_in, stack_in, why_not_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.recorded_calls import Case

CASES: dict[str, Case] = {
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
    "a lock, which is written in C, and is left by its own name": (
        """
        def f(self, x):
            with self.lock:
                x = x.view(-1)
            y = x.to(self.dtype)  # <-
            return y.to(self.device)
        """,
        "view __exit__ to",
        "to",
    ),
    "the lock itself": (
        """
        def f(self, x):
            with self.lock:  # <-
                x = x.view(-1)
            return x.to(self.dtype)
        """,
        "view __exit__",
    ),
    "a list of what a generator makes, which goes on for each": (
        """
        def f(self, x):
            parts = list(self.parts(x))
            return parts.to(self.dtype)  # <-
        """,
        "parts() parts() parts() to",
    ),
    "a generator that was made before its loop": (
        """
        def f(self, x):
            parts = self.parts(x)
            for part in parts:
                part.to(self.dtype)  # <-
            return x.to(self.device)
        """,
        "parts() to parts() to parts() to",
        "parts() to",
    ),
    "a text made of an object": (
        """
        def f(self, x):
            log(str(x))
            return x.to(self.device)  # <-
        """,
        "__str__() log() to",
    ),
    "a class within": (
        """
        def f(self, x):
            x = x.to(self.dtype)
            class Kept(Base):
                y = 1
            return x.to(self.device)  # <-
        """,
        "to __build_class__ to",
    ),
    "a class under its usual variable": (
        """
        def f(cls, x):
            if x is None:
                raise ValueError(1)
            made = cls(x.view(-1))  # <-
            return made.x.to(1)
        """,
        "view __init__()",
    ),
    "a property that is stored": (
        """
        def f(self, x):
            self.ready = True
            return x.to(self.dtype)  # <-
        """,
        "ready() to",
    ),
    "an import within a function, of a package's part": (
        """
        def f(self, x):
            from tools import scale
            return x.to(self.dtype)  # <-
        """,
        "parent() _handle_fromlist() to",
    ),
    "an op under a name that two places may hide": (
        """
        def f(self, x):
            x = self.a(x)  # <-
            return self.b(x)  # <-
        """,
        "+copy_",
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


@pytest.mark.parametrize("name", CASES)
def test_the_statement_is_the_one_that_made_the_call(name: str, tmp_path: Path) -> None:
    check_case(CASES[name], tmp_path)


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
