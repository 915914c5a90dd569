"""The Python functions around an op, and what the innermost of them called before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.attribute.code_owner import INTERNAL
from stepscope.pipeline.attribute.stacks import FUNCTION, MOST_CALLS, Call, CallKind, Calls, Stack, StackFrame, stack_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.trace import Trace


def loaded(trace: Kineto) -> Trace:
    trace.kernel("any", 0, 1)
    trace.frame("torch/profiler/profiler.py(8): start", -3, 1)  # what ends before tells what was not running then
    return stepped(trace)[0].trace


def stack(trace: Kineto, op: str, internal: Collection[str] = INTERNAL) -> Stack | None:
    read = loaded(trace)
    return stack_of(read, read.ops["name"].cast(str).to_list().index(op), internal)


def test_frames_are_outermost_first_and_only_of_the_ops_thread() -> None:
    trace = Kineto()
    trace.frame("server.py(1): main", 0, 100)
    trace.frame("model.py(10): forward", 10, 50)
    trace.frame("other.py(5): poll", 0, 100, tid=2)
    trace.frame("model.py(30): later", 70, 10)
    trace.op("aten::copy_", 20, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert [(frame.file, frame.line, frame.function) for frame in found.frames] == [
        ("server.py", 1, "main"),
        ("model.py", 10, "forward"),
    ]


def test_a_function_that_began_before_anything_ended_may_have_been_running_already() -> None:
    trace = Kineto()
    trace.frame("server.py(40): loop", -10, 110)
    trace.frame("model.py(10): forward", 10, 50)
    trace.op("aten::copy_", 20, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert [frame.was_running for frame in found.frames] == [True, False]


def test_a_built_in_and_a_module_are_no_frames() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 0, 100)
    trace.frame("nn.Module: Attention_0", 5, 90)
    trace.frame("<built-in method to of Tensor object at 0x7f>", 10, 20)
    trace.op("aten::copy_", 12, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert [frame.function for frame in found.frames] == ["forward"]


def test_the_calls_are_those_that_the_innermost_function_made_itself_in_order() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 0, 100)
    trace.frame("pool.py(3): get_key_buffer", 5, 10)
    trace.frame("<built-in method view of Tensor object at 0x7f>", 7, 2)  # within get_key_buffer
    trace.frame("<built-in method to of Tensor object at 0x7f>", 20, 20)
    trace.op("aten::to", 21, 18)
    trace.op("aten::copy_", 25, 10)
    trace.frame("<built-in method view of Tensor object at 0x7f>", 50, 5)  # after the op
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls == Calls(
        (Call("get_key_buffer", CallKind.FUNCTION), Call("to", CallKind.BUILT_IN)),
        (Call("view", CallKind.BUILT_IN),),
        built_ins=True,
    )


def test_an_op_that_python_did_not_call_by_a_name_is_itself_a_call() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 0, 100)
    trace.op("aten::index", 10, 20)
    trace.op("aten::copy_", 12, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls == Calls((Call("index", CallKind.OP),))


def test_without_python_functions_there_is_no_stack() -> None:
    trace = Kineto()
    trace.op("aten::copy_", 12, 5)
    trace.frame("model.py(10): forward", 0, 10)  # already over
    trace.frame("nn.Module: Attention_0", 5, 90)
    assert stack(trace, "aten::copy_") is None


def called_through_torch() -> Kineto:
    """Your `forward` calls a module and that `F.linear`; a decorator of torch's is around your function."""
    trace = Kineto()
    trace.frame("sglang/srt/server.py(1): loop", 0, 100)
    trace.frame("torch/utils/_contextlib.py(112): decorate_context", 2, 90)
    trace.frame("app/model.py(10): forward", 3, 80)
    trace.frame("<built-in method view of Tensor object at 0x7f>", 4, 1)
    trace.frame("nn.Module: Linear_3", 6, 50)
    trace.frame("torch/nn/modules/module.py(1779): _call_impl", 7, 48)
    trace.frame("torch/nn/modules/linear.py(130): forward", 8, 46)
    trace.frame("<built-in function linear>", 9, 40)
    trace.op("aten::linear", 10, 38)
    trace.frame("torch/nn/modules/module.py(1940): __getattr__", 60, 1)
    return trace


def test_the_place_is_the_innermost_function_of_your_code_and_its_calls_lead_into_torch() -> None:
    found = stack(called_through_torch(), "aten::linear")
    assert found is not None
    assert [frame.function for frame in found.frames] == [
        "loop",
        "decorate_context",
        "forward",
        "_call_impl",
        "forward",
    ]
    assert (found.place, found.frame) == (2, StackFrame("app/model.py", 10, "forward"))
    assert found.calls is not None
    assert found.calls.until == (Call("view", CallKind.BUILT_IN), Call("Linear", CallKind.MODULE))
    assert found.calls.later == (Call("__getattr__", CallKind.FUNCTION),)
    assert found.modules == ("Linear_3",)


def test_the_engine_is_your_code_unless_it_is_named_as_internal() -> None:
    trace = Kineto()
    trace.frame("app/server.py(5): main", 0, 100)
    trace.frame("sglang/srt/backend.py(10): forward", 1, 90)
    trace.op("aten::copy_", 10, 5)
    yours = stack(trace, "aten::copy_")
    engine = stack(trace, "aten::copy_", INTERNAL | {"sglang"})
    assert yours is not None
    assert engine is not None
    assert (yours.frame.function, engine.frame.function) == ("forward", "main")


def test_where_no_function_is_your_code_the_innermost_is_the_place() -> None:
    trace = Kineto()
    trace.frame("threading.py(5): run", 0, 100)
    trace.frame("torch/optim/adam.py(10): step", 1, 90)
    trace.op("aten::copy_", 10, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.frame.function == "step"


def test_what_torch_compile_runs_is_told_from_a_function() -> None:
    trace = Kineto()
    trace.frame("app/model.py(10): forward", 0, 100)
    trace.frame("torch/_dynamo/eval_frame.py(9): _fn", 5, 50)
    trace.op("aten::copy_", 12, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls == Calls((Call("_fn", CallKind.COMPILED),))


def test_a_function_that_is_over_has_all_its_calls() -> None:
    trace = Kineto()
    trace.frame("app/model.py(10): forward", 10, 50)
    trace.op("aten::copy_", 12, 5)
    trace.op("aten::mul", 20, 5)
    trace.frame("app/model.py(90): later", 70, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls is not None
    assert (found.calls.later, found.calls.to_end) == ((Call("mul", CallKind.OP),), True)


def test_of_a_long_function_only_the_calls_near_the_op_are_looked_at() -> None:
    trace = Kineto()
    trace.frame("app/server.py(10): loop", 1, 10_000)
    for number in range(MOST_CALLS + 40):
        trace.op("aten::add", 2 + number, 0.5)
    trace.op("aten::copy_", 1000, 5)
    for number in range(MOST_CALLS + 40):
        trace.op("aten::mul", 1100 + number, 0.5)
    trace.frame("app/server.py(99): end", 10_500, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls is not None
    assert [call.name for call in found.calls.until] == ["add"] * (MOST_CALLS - 1) + ["copy_"]
    assert [call.name for call in found.calls.later] == ["mul"] * MOST_CALLS
    assert (found.calls.from_start, found.calls.to_end) == (False, False)


SITE = "/opt/env/lib/python3.7/site-packages"


def as_text(*, op: str = "aten::_convolution") -> Stack | None:
    """An op of 2021, with its stack as text: the innermost function first, each with the line that it was at."""
    trace = Kineto()
    call_stack = f"{SITE}/torch/nn/modules/conv.py(443): forward;{SITE}/app/net.py(45): forward;run.py(54): <module>"
    hierarchy = "TOP(Net)::forward.SELF(Net)::run.conv1(Conv2d)::forward."
    args = {"Call stack": call_stack, "Module Hierarchy": hierarchy}
    trace.span("cpu_op", "aten::conv2d", 10, 50, args=args)
    trace.span("cpu_op", "aten::_convolution", 12, 40, args={"Call stack": "", "Module Hierarchy": ""})
    trace.span("cpu_op", "aten::add", 70, 5, args={"Call stack": 7})
    trace.span("cpu_op", "aten::mul", 80, 5, args={"Call stack": "no function"})
    return stack(trace, op)


def test_a_stack_recorded_as_text_is_turned_outermost_first_and_holds_for_the_ops_within() -> None:
    for op in ("aten::conv2d", "aten::_convolution"):
        found = as_text(op=op)
        assert found is not None
        assert found.frames == (
            StackFrame("run.py", 54, "<module>"),
            StackFrame(f"{SITE}/app/net.py", 45, "forward"),
            StackFrame(f"{SITE}/torch/nn/modules/conv.py", 443, "forward"),
        )
        assert (found.frame.line, found.calls) == (45, None)
        assert found.modules == ("Net", "conv1(Conv2d)")


def test_a_text_that_is_no_stack_is_none() -> None:
    assert as_text(op="aten::add") is None
    assert as_text(op="aten::mul") is None


# what a broken or hostile trace holds


@pytest.mark.parametrize("name", ["(1): x" * 160_000 + "\n\n", "(" * 1_000_000, "(1" * 500_000, "a(1): " * 160_000])
def test_no_name_takes_long_to_read(name: str) -> None:
    begin = time.process_time()
    FUNCTION.match(name)
    assert time.process_time() - begin < 1


def test_an_op_as_long_as_its_function_is_its_call() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 10, 20)
    trace.op("aten::copy_", 10, 20)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls == Calls((Call("copy_", CallKind.OP),))


@pytest.mark.parametrize("overlap", [0.001, 0.25, 2])
def test_a_call_that_seems_to_begin_before_the_last_one_ends_is_a_call_of_its_own(overlap: float) -> None:
    """Times were rounded to 0.25 µs for years."""
    trace = Kineto()
    trace.frame("model.py(10): forward", 10, 50)
    trace.frame("<built-in method view of Tensor object at 0x7f>", 12, 10 + overlap)
    trace.frame("<built-in method to of Tensor object at 0x7f>", 22, 10)
    trace.op("aten::copy_", 23, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls is not None
    assert [call.name for call in found.calls.until] == ["view", "to"]


def test_an_op_that_sticks_out_of_its_function_by_rounding_is_still_in_it() -> None:
    trace = Kineto()
    trace.frame("server.py(1): main", 0, 100)
    trace.frame("model.py(10): forward", 10, 20)
    trace.op("aten::copy_", 20, 10.25)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.frame.function == "forward"


def test_a_function_that_ended_where_an_op_of_no_length_lies_is_not_around_it() -> None:
    trace = Kineto()
    trace.frame("server.py(1): main", 0, 100)
    trace.frame("model.py(10): forward", 10, 20)
    trace.op("aten::copy_", 30, 0)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.frame.function == "main"


def test_calls_of_which_none_holds_the_op_are_none() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 10, 50)
    trace.frame("<built-in method view of Tensor object at 0x7f>", 12, 12)
    trace.frame("<built-in method to of Tensor object at 0x7f>", 20, 7)  # its earlier half lies in `view`
    trace.op("aten::copy_", 24.5, 1.5)  # and this within it, but behind `view`
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls is not None
    assert found.calls.until == ()


@pytest.mark.parametrize("count", [300_000])
def test_a_look_up_among_many_frames_is_quick(count: int) -> None:
    trace = Kineto()
    for number in range(count // 100):
        trace.frame("app/server.py(1): loop", 10 + number * 100, 99)
        for inner in range(98):
            trace.frame(f"<built-in method to of Tensor object at {number}{inner}>", 10.5 + number * 100 + inner, 0.5)
    trace.op("aten::copy_", 10.6, 0.1)
    read = loaded(trace)
    begin = time.process_time()
    found = stack_of(read, 0)
    assert time.process_time() - begin < 1
    assert found is not None
    assert found.calls is not None
    assert found.calls.until == (Call("to", CallKind.BUILT_IN),)


def test_of_a_stack_without_end_the_innermost_functions_are_kept() -> None:
    trace = Kineto()
    count = 20_000
    for number in range(count):
        trace.frame(f"app/model.py({number + 1}): f", 10 + number, 2.0 * (count - number))
    trace.op("aten::copy_", 10.5 + count, 0.1)
    read = loaded(trace)
    begin = time.process_time()
    found = stack_of(read, 0)
    assert time.process_time() - begin < 1
    assert found is not None
    assert [frame.line for frame in found.frames] == list(range(count - 999, count + 1))
    assert found.frame.line == count
