"""The Python functions around an op, and what the innermost of them called before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.attribute.stacks import Stack, stack_of

if TYPE_CHECKING:
    from stepscope.trace import Trace


def loaded(trace: Kineto) -> Trace:
    trace.kernel("any", 0, 1)
    return stepped(trace)[0].trace


def stack(trace: Kineto, op: str) -> Stack | None:
    read = loaded(trace)
    return stack_of(read, read.ops["name"].cast(str).to_list().index(op))


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
    trace.frame("server.py(40): loop", 0, 100)
    trace.frame("profiler.py(8): start", 1, 4)
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
    assert found.calls == ("get_key_buffer", "to")


def test_an_op_that_python_did_not_call_by_a_name_is_itself_a_call() -> None:
    trace = Kineto()
    trace.frame("model.py(10): forward", 0, 100)
    trace.op("aten::index", 10, 20)
    trace.op("aten::copy_", 12, 5)
    found = stack(trace, "aten::copy_")
    assert found is not None
    assert found.calls == ("index",)


def test_without_python_functions_there_is_no_stack() -> None:
    trace = Kineto()
    trace.op("aten::copy_", 12, 5)
    trace.frame("model.py(10): forward", 0, 10)  # already over
    trace.frame("nn.Module: Attention_0", 5, 90)
    assert stack(trace, "aten::copy_") is None
