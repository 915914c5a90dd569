"""Recorded calls lined up with branches, loops and the order of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.recorded_calls import check_case

if TYPE_CHECKING:
    from pathlib import Path

    from tests.recorded_calls import Case

CASES: dict[str, Case] = {
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
    "what stands behind `and` and `or` is come to by one of them": (
        """
        def f(self, x, y):
            x = self.flag and x.to(1) or y.to(2)  # <-
            x = x.to(3)
            return x.to(4)
        """,
        "to",
        "to to",
    ),
    "neither side of `or` is come to where `and` fails within a condition": (
        """
        def f(self, x):
            if self.a and x.to(1).any():
                x = x.view(1)
            elif not (self.b or self.c):
                return x.to(2)
            return x.contiguous().to(3)  # <-
        """,
        "contiguous to",
    ),
    "a loop without an end is left by `break` alone": (
        """
        def f(self, parts):
            while True:
                parts.to(self.dtype)  # <-
                if parts.ready:
                    break
                parts = parts.view(-1)
            return parts.contiguous()
        """,
        "to view to",
    ),
    "a case that does not match has no guard to ask": (
        """
        def f(self, x):
            match self.mode:
                case "a" if self.ready():
                    return x.to(1)
                case _:
                    x = x.to(2)  # <-
            return x.view(-1)
        """,
        "to",
        "view",
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
}


@pytest.mark.parametrize("name", CASES)
def test_the_statement_is_the_one_that_made_the_call(name: str, tmp_path: Path) -> None:
    check_case(CASES[name], tmp_path)
