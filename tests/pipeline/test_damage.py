"""No file, however damaged, ends in a traceback: a diagnosis, or one of stepscope's own errors."""

from __future__ import annotations

import copy
import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kineto import Kineto
from tests.samples_of_trouble import pool_cast

from stepscope import diagnose
from stepscope.document import json_schema
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from pathlib import Path

TRACE = pool_cast(steps=3, layers=3).document()
TEXT = json.dumps(TRACE).encode()
SCHEMA = jsonschema.Draft202012Validator(json_schema())

quiet = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_diagnosed(path: Path) -> bool:
    """Diagnose, and tell whether the file was taken for a trace; anything but stepscope's own errors is a bug."""
    try:
        diagnosis = diagnose([path], model="glm-5", tp=8)
    except StepscopeError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- an error is an allowed answer
        return False
    SCHEMA.validate(json.loads(msgspec.json.encode(diagnosis)))
    return True


@quiet
@given(
    damage=st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.binary(max_size=6)), min_size=1, max_size=6),
    packed=st.booleans(),
)
def test_overwritten_bytes(damage: list[tuple[int, bytes]], packed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    content = bytearray(gzip.compress(TEXT, 1, mtime=0) if packed else TEXT)
    for position, garbage in damage:
        at = position % len(content)
        content[at : at + len(garbage)] = garbage
    path = tmp_path / "trace"
    path.write_bytes(content)
    is_diagnosed(path)


def test_a_step_cut_after_the_cause_is_predicted_to_take_no_time(tmp_path: Path) -> None:
    events = [event for event in TRACE["traceEvents"] if event["cat"] != "kernel" or "direct_copy" in event["name"]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    what_if = diagnose([path], model="glm-5", tp=8).findings[0].what_if
    assert what_if is not None
    assert (what_if.step_us.expected, what_if.gpu_span_us.expected, what_if.gain_fraction) == (0, 0, 1)
    assert is_diagnosed(path)


@quiet
@given(cut=st.integers(0, len(TEXT)))
def test_cut_anywhere(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(TEXT[:cut])
    first_event_ends = TEXT.index(b"}", TEXT.index(b'"ph"')) + 1
    assert is_diagnosed(path) == (cut >= first_event_ends)


ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, -(2**63), 10**30, 0.5, -1e18, 8.9e15, 1e308),
    *("", "7", "NaN", "\u0000", [], {}, [[]], [1, 2], [0, 0, 0], [-1, -1, -1], [2**40, 2**40, 2**40]),
    *([[495552, 1, 576]], [["c10::Half"]], [[None]], ["c10::Half", "c10::Half"]),
]
KEYS = [
    *("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"),
    *("device", "stream", "correlation", "grid", "block", "bytes", "Input Dims", "Input type"),
]
odd_values = st.sampled_from(ODD_VALUES)
places = st.tuples(st.integers(0, len(TRACE["traceEvents"]) - 1), st.sampled_from(KEYS), odd_values)


@quiet
@given(changes=st.lists(places, min_size=1, max_size=8))
def test_odd_values_in_events(changes: list[tuple[int, str, Any]], tmp_path: Path) -> None:
    document = copy.deepcopy(TRACE)
    for index, key, value in changes:
        event = document["traceEvents"][index]
        place = event if key in event or not isinstance(event.get("args"), dict) else event["args"]
        place[key] = value
    path = tmp_path / "trace"
    path.write_text(json.dumps(document))
    assert is_diagnosed(path)


@quiet
@given(header=st.dictionaries(st.sampled_from(["deviceProperties", "distributedInfo", "schemaVersion"]), odd_values))
def test_odd_values_in_the_header(header: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, **header}))
    assert is_diagnosed(path)


ENDLESS = "1" * 5000
HOSTILE_NAMES = [
    ("user_annotation", f"step[DECODE bs={ENDLESS}]"),
    ("user_annotation", f"step[DECODE bs={10**30}]"),
    ("user_annotation", f"execute_context_0(0)_generation_{ENDLESS}(sq1sk{ENDLESS})"),
    ("user_annotation", f"execute_context_0(0)_generation_1(sq1sk{ENDLESS})"),
    ("python_function", f"lab.py({ENDLESS}): run"),
    ("kernel", f"unrolled_elementwise_kernel<direct_copy_kernel_cuda, std::array<char*, 2ul>, {ENDLESS}, x>"),
]


@pytest.mark.parametrize(("category", "name"), HOSTILE_NAMES)
def test_endless_numbers_in_names(category: str, name: str, tmp_path: Path) -> None:
    events = [event | {"name": name} if event["cat"] == category else event for event in TRACE["traceEvents"]]
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    assert is_diagnosed(path)


@pytest.mark.parametrize("number", ODD_VALUES)
def test_odd_device_numbers(number: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, "deviceProperties": [{"id": number, "name": number}]}))
    assert is_diagnosed(path)


@pytest.mark.parametrize("rank", [True, -1, 10**30, "3", None, []])
def test_a_rank_that_is_none(rank: Any, tmp_path: Path) -> None:
    path = tmp_path / f"rank{'9' * 100}.json"
    path.write_text(json.dumps({**TRACE, "distributedInfo": {"rank": rank}}))
    assert is_diagnosed(path)


@pytest.mark.parametrize("hurt", ["direct_copy", ""])
def test_kernels_without_a_duration(hurt: str, tmp_path: Path) -> None:
    events = [
        event | {"dur": 0} if event["cat"] == "kernel" and hurt in event["name"] else event
        for event in TRACE["traceEvents"]
    ]
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    assert is_diagnosed(path)


def test_steps_that_all_begin_at_once(tmp_path: Path) -> None:
    events = [event | {"ts": 30, "dur": 9} if event["cat"] == "kernel" else event for event in TRACE["traceEvents"]]
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    assert is_diagnosed(path)


@pytest.mark.parametrize("name", ["moe" * 300_000, "fused_moetopk" * 70_000, "unrolled_elementwise_kernel<" * 30_000])
def test_a_name_of_a_megabyte_takes_no_time(name: str, tmp_path: Path) -> None:
    events = [event | {"name": name} if event["cat"] == "kernel" else event for event in TRACE["traceEvents"]]
    path = tmp_path / "trace"
    path.write_text(json.dumps({**TRACE, "traceEvents": events}))
    began = time.monotonic()
    assert is_diagnosed(path)
    assert time.monotonic() - began < 30


def many(count: int, *, one_step: bool) -> Kineto:
    """So many steps, or one, with as many waits, holes, replays, kernels' names and casts of shapes of their own."""
    trace = Kineto()
    for number in range(count):
        at = 10 + number * 2000
        if not one_step or not number:
            trace.annotation("step[DECODE bs=1]", at - 5, 10)
        shapes = [[400_000 + number, 576]] * 2
        trace.call(f"cast{number}", at=at, duration=8, op="aten::copy_", dims=shapes, types=["c10::Half", "float"])
        trace.replay([(f"kernel{number}", 5, (1, 1, 1))], at=at + 20)
        trace.launch(at + 75, 1800, name="cudaStreamSynchronize")
    return trace


@pytest.mark.parametrize("one_step", [True, False])
def test_time_grows_with_the_file_and_not_with_its_square(one_step: bool, tmp_path: Path) -> None:  # noqa: FBT001
    def seconds(count: int) -> float:
        path = many(count, one_step=one_step).save(tmp_path / f"{count}.json")
        began = time.process_time()
        assert is_diagnosed(path)
        return time.process_time() - began

    seconds(100)  # what is done once, such as imports
    assert seconds(4_000) < 24 * seconds(500)  # 8 in proportion, 64 in the square
