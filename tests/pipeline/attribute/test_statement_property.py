"""Random functions, run under a tracer: for every call that one makes, its true line is among those that are said."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.pipeline.attribute.stacks import Call, CallKind, Calls, Stack, StackFrame
from stepscope.pipeline.attribute.statement import Statement, find_statement

if TYPE_CHECKING:
    from types import CodeType, FrameType

PRELUDE = '''\
import functools

BITS = []


def bit():
    return BITS.pop() if BITS else False


class Fake:
    """A tensor's methods are recorded as built-ins, its operators as ops."""

    ready = True

    def to(self, *args): return Fake()
    def view(self, *args): return Fake()
    def contiguous(self): return Fake()
    def copy_(self, other): return Fake()
    def __add__(self, other): return Fake()
    def __iadd__(self, other): return Fake()
    def __getitem__(self, key): return Fake()
    def __setitem__(self, key, value): return None
    def __bool__(self): return bit()


class Box:
    def __init__(self, x):
        self.x = x.view(1)

    @property
    def inner(self):
        return self.x

    def method(self, x):
        return x.to(9)

    def __enter__(self): return self
    def __exit__(self, *args): return None


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


def helper(x):
    return x.to(7)


@decorated
def wrapped(x):
    return x.to(8)


def boom(x):
    if bit():
        raise ValueError
    return x


other_name = helper
box = Box(Fake())

'''
EXPRESSIONS = [
    *("x.to(1)", "x.to(y)", "y.to(2)", "x.view(1)", "y.contiguous()", "x.copy_(y)", "x + y", "x[0]", "x.view(1).to(1)"),
    *("helper(x)", "wrapped(x)", "other_name(y)", "boom(x)", "box.method(y)", "box.inner", "Box(y.to(4)).x"),
    *(
        "x.to(1) if bit() else x.view(2)",
        "x.to(1) if F[0] else y.to(2)",
        "F[1] and x.to(1) or y.to(2)",
        "helper(x.to(1))",
    ),
    *(
        "([t.to(1) for t in xs if F[2]], x)[1]",
        "(lambda t: t.to(1))(x.view(3))",
        "(x.ready, y.to(3))[1]",
        "max(1, 2) and x",
    ),
    *("tuple(t.to(5) for t in xs) and y", "(x.to(1), y.to(2), x.contiguous())[0]"),
]
TESTS = ["bit()", "F[0]", "F[1]", "not F[2]", "x", "x.ready", "F[0] or bit()", "x.to(1).ready"]
NAME = "f"
SIMPLE = [*["assign"] * 5, "store", "add"]
BLOCKS = ["if", "if-else", "for", "with", "try", "finally"]


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0, *, in_loop: bool = False) -> list[str]:  # noqa: C901 -- a case a kind
    """Draw the lines of a block: a statement a line."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = (
            ["assign"] * 5
            + ["store", "add"]
            + (["if", "if-else", "for", "with", "try", "finally"] if depth < 3 else [])
        )
        kind = draw(st.sampled_from(kinds + (["break", "continue"] if in_loop else []) + ["return"] * (depth > 0)))
        expression, test = draw(st.sampled_from(EXPRESSIONS)), draw(st.sampled_from(TESTS))

        def inner(*, in_loop: bool = in_loop) -> list[str]:
            return [f"    {line}" for line in draw(blocks(depth + 1, in_loop=in_loop))]

        match kind:
            case "assign":
                lines.append(f"{draw(st.sampled_from('xy'))} = {expression}")
            case "store":
                lines.append(f"x[0] = {expression}")
            case "add":
                lines.append("x += y")
            case "if":
                lines += [f"if {test}:", *inner()]
            case "if-else":
                lines += [f"if {test}:", *inner(), "else:", *inner()]
            case "for":
                lines += ["for t in xs:", *inner(in_loop=True)]
            case "with":
                lines += ["with Box(x) as b:", *inner()]
            case "try":
                lines += ["try:", *inner(), "except ValueError:", *inner()]
            case "finally":
                lines += ["try:", *inner(), "finally:", *inner()]
            case "break" | "continue":
                lines.append(f"if {test}:")
                lines.append(f"    {kind}")
            case "return":
                return [*lines, f"return {expression}"]
    return lines


class Made(NamedTuple):
    """A call that the function made, and the line that it was at."""

    call: Call
    line: int


OPS = {
    "__add__": "add",
    "__iadd__": "add_",
    "__getitem__": "index",
    "__setitem__": "index_put_",
    "__bool__": "is_nonzero",
}


def run(source: str, flags: list[bool], bits: list[bool]) -> list[Made]:
    """Run the function, and return what it called itself, as torch's profiler would name it."""
    module: dict[str, Any] = {"F": flags}
    exec(compile(source, "m.py", "exec"), module)  # noqa: S102 -- built by this test
    module["BITS"].extend(bits)
    fake: dict[CodeType, str] = {
        function.__code__: name for name, function in vars(module["Fake"]).items() if hasattr(function, "__code__")
    }
    target: CodeType = module[NAME].__code__
    made: list[Made] = []

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_back is not None and frame.f_back.f_code is target:
            name = fake.get(frame.f_code)
            if name is None:
                call = Call(frame.f_code.co_name, CallKind.FUNCTION)
            else:
                call = Call(OPS[name], CallKind.OP) if name in OPS else Call(name, CallKind.BUILT_IN)
            made.append(Made(call, frame.f_back.f_lineno))
        elif event == "c_call" and frame.f_code is target:
            made.append(Made(Call(argument.__name__, CallKind.BUILT_IN), frame.f_lineno))

    tensors = module["Fake"](), module["Fake"](), [module["Fake"](), module["Fake"]()]
    gc.disable()  # hypothesis has a callback that would be recorded wherever it runs
    sys.setprofile(trace)
    try:
        module[NAME](*tensors)
    except ValueError:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return made


def said(source: str, made: list[Made], upto: int, *, later: bool) -> tuple[int, ...]:
    """Return the lines that are said for one of the calls."""
    line = source.splitlines().index(f"def {NAME}(x, y, xs):") + 1
    calls = [call for call, _ in made]
    recorded = Calls(tuple(calls[: upto + 1]), tuple(calls[upto + 1 :]) if later else (), to_end=later, built_ins=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "m.py").write_text(source)
        found = find_statement(Stack((StackFrame("m.py", line, NAME),), 0, recorded), [Path(folder)])
    assert isinstance(found, Statement), (found, calls[upto])
    return found.lines


def written(lines: list[str]) -> str:
    return PRELUDE + f"def {NAME}(x, y, xs):\n" + "".join(f"    {line}\n" for line in lines)


# the likeliest way is not always the true one: of 10,000 calls of such functions, about one is said to be elsewhere
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lines=blocks(),
    flags=st.lists(st.booleans(), min_size=3, max_size=3),
    bits=st.lists(st.booleans(), max_size=12),
    later=st.booleans(),
)
def test_the_true_line_is_among_those_that_are_said(
    lines: list[str], flags: list[bool], bits: list[bool], *, later: bool
) -> None:
    source = written(lines)
    made = run(source, flags, bits)
    for number in range(len(made))[-12:]:
        assert made[number].line in said(source, made, number, later=later), (made[number], source[len(PRELUDE) :])


# what may be recorded or not, such as an operator (of numbers it is not) or an attribute, leaves a choice of several
STRAIGHT = [
    text
    for text in EXPRESSIONS
    if not any(word in text for word in ("if", " and", " or", "tuple", "[", " + ", "inner"))
]


@settings(max_examples=60, deadline=None)
@given(expressions=st.lists(st.sampled_from(STRAIGHT), min_size=1, max_size=12), later=st.booleans())
def test_of_calls_without_branches_it_is_said_alone(expressions: list[str], *, later: bool) -> None:
    source = written([f"x = {expression}" for expression in expressions])
    made = run(source, [True] * 3, [])
    for number, (call, line) in enumerate(made):
        lines = said(source, made, number, later=later)
        if call.name == "wrapper":  # a name that the source does not hold may be of another call's function
            assert line in lines
        else:
            assert lines == (line,)
