"""Which files of this machine are read for a path that a trace names: traces are untrusted."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from tests.recorded_calls import found_in, stack_in, why_not_in

from stepscope.pipeline.attribute.statement import Statement, find_statement
from stepscope.pipeline.attribute.statement.files import LIMIT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

CAST = "def f(x):\n    return x.to()\n"
BACKEND = "sglang/srt/layers/attention/backend.py"


def written(path: Path, text: str = CAST) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "recorded",
    [BACKEND, f"/usr/lib/python3/site-packages/{BACKEND}", f"../../{BACKEND}", BACKEND.replace("/", "\\")],
)
def test_the_file_is_found_by_the_end_of_its_recorded_path(tmp_path: Path, recorded: str) -> None:
    written(tmp_path / BACKEND)
    assert found_in(tmp_path, stack_in(recorded, "to")).file == recorded


def test_what_is_missing_of_a_file_is_said(tmp_path: Path) -> None:
    stack = stack_in("model.py", "to")
    assert why_not_in(tmp_path, stack) == "model.py was not found"
    written(tmp_path / "model.py", "def forward(:\n")
    for text in (b"\xff\xfe\x00 forward", b"# coding: none-such\n", b"# coding: bz2\n", b"print x\n", b"x = 1\0\n"):
        (tmp_path / "model.py").write_bytes(text)
        assert why_not_in(tmp_path, stack).startswith("model.py is no source that Python 3.")
    written(tmp_path / "model.py", "#" * (LIMIT_BYTES + 1))
    assert why_not_in(tmp_path, stack) == "model.py is larger than 1 MB, too large to be parsed"
    assert why_not_in(tmp_path, stack_in("<stdin>", "to")) == (
        "<stdin> is no file, but code that was typed in or made by a program"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# coding: latin-1\ndef f(x):\n    return x.to('é')\n".encode("latin-1"), 3),
        (b"\xef\xbb\xbfdef f(x):\n    return x.to()\n", 2),
        (b"def f(x):\r\n    y = 1\r\n    return x.to()\r\n", 3),
        (b"\x0cdef f(x):\n\x0c    return x.to()\n", 2),
        (b"def f(x):\n    y = '\x0c\x1c\xe2\x80\xa8'\n    return x.to()\n", 3),
        (b"def f(x):\n\treturn x.to()", 2),
        (b"def f(x): return x.to()", 1),
        (b"def f(x):\n    # one\n\n    # two\n    return x.to()\n", 5),
    ],
)
def test_a_source_is_read_as_python_reads_it(text: bytes, line: int, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(text)
    begins = next(number for number, row in enumerate(text.splitlines(), 1) if b"def f" in row)
    found = found_in(tmp_path, stack_in("model.py", "to", line=begins))
    assert found.lines == (line,)
    assert (found.text or "").startswith("return x.to(")


def test_of_a_statement_as_long_as_a_file_only_the_beginning_is_kept(tmp_path: Path) -> None:
    written(tmp_path / "model.py", f"def f(x):\n    return x.to([{'1, ' * 100_000}])\n")
    found = found_in(tmp_path, stack_in("model.py", "to"))
    assert found.text is not None
    assert found.text.startswith("return x.to([1, 1, ")
    assert len(found.text) < 2100


def test_the_next_folder_is_tried_where_the_first_holds_another_version(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    written(old / "model.py", "x = 1\n")
    written(new / "model.py")
    found = find_statement(stack_in("model.py", "to"), [old, new])
    assert isinstance(found, Statement)
    assert found.text == "return x.to()"


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "secret" / "key.py")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "linked.py").symlink_to(tmp_path / "secret" / "key.py")
    (folder / "linked").symlink_to(tmp_path / "secret")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    for file in ("linked.py", "linked/key.py", "../secret/key.py", "loop.py"):
        assert "was not found" in why_not_in(folder, stack_in(file, "to"))
    (folder / "own.py").symlink_to(folder / "real.py")
    written(folder / "real.py")
    assert found_in(folder, stack_in("own.py", "to")).text == "return x.to()"


def test_a_recorded_file_that_is_here_is_read_after_the_folders(tmp_path: Path) -> None:
    recorded = written(tmp_path / "installed" / "model.py")
    stack = stack_in(str(recorded), "to")
    found = find_statement(stack, [])
    assert isinstance(found, Statement)
    assert (found.text, found.file, found.lines) == ("return x.to()", str(recorded), (2,))
    folder = tmp_path / "given"
    written(folder / "model.py", "def f(x):\n    return x.half().to()\n")
    assert found_in(folder, stack_in(str(recorded), "half", "to")).text == "return x.half().to()"


def test_only_a_regular_python_file_with_an_absolute_path_is_read_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "model.py")
    written(tmp_path / "model.txt")
    os.mkfifo(tmp_path / "pipe.py")  # opening it would wait for ever
    (tmp_path / "device.py").symlink_to("/dev/zero")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    unc = [f"{slashes}host{tmp_path}/model.py" for slashes in ("//", "\\\\", "/\\", "\\/")]
    refused = ["model.py", "./model.py", f"/{tmp_path}/model.py", *unc]
    for file in [*refused, *(str(tmp_path / name) for name in ("model.txt", "pipe.py", "device.py", "folder.py"))]:
        assert not isinstance(find_statement(stack_in(file, "to"), []), Statement), file
    assert isinstance(find_statement(stack_in(str(tmp_path / "model.py"), "to"), []), Statement)


@pytest.mark.parametrize("file", ["a" * 300_000 + ".py", "a/" * 500_000 + "b.py", "nul\0.py", "../" * 9 + "x.py", ""])
@pytest.mark.parametrize("root", ["", "/"])
def test_names_that_no_file_can_have(file: str, root: str, tmp_path: Path) -> None:
    assert "was not found" in why_not_in(tmp_path, stack_in(root + file, "to"))


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
    written(tmp_path / "deep.py", f"def f(x):\n    return {DEEP[what]}.to()\n")
    find_statement(stack_in("deep.py", "to"), [tmp_path])


@pytest.mark.parametrize(
    "body",
    [
        "    x.to()\n" * 6_000,
        "    if x:\n        x.to()\n    else:\n        x.to()\n" * 2_000,
        "    for y in x:\n        y.to()\n" * 2_000,
        "    try:\n        x.to()\n    except A:\n        x.to()\n" * 1_000,
        "    x = [" + "y.to(), " * 6_000 + "]\n",
    ],
    ids=["casts", "branches", "loops", "handlers", "list"],
)
def test_a_huge_function_takes_seconds_at_most(body: str, tmp_path: Path) -> None:
    """Lined up in full, 18,000 places times 400 calls would take a minute."""
    written(tmp_path / "huge.py", "def f(x):\n" + body)
    begin = time.process_time()
    find_statement(stack_in("huge.py", *["to"] * 200, later=["to"] * 200), [tmp_path])
    assert time.process_time() - begin < 20


def test_a_function_longer_than_people_write_is_given_up_soon(tmp_path: Path) -> None:
    written(tmp_path / "huge.py", "def f(x):\n" + "    x.view(x[0]).a.b(1 + x)\n" * 25_000 + "    x.to()\n")
    begin = time.process_time()
    why = why_not_in(tmp_path, stack_in("huge.py", "to"))
    assert time.process_time() - begin < 10  # nearly all of it for parsing
    assert why == "f in huge.py is too long: it has more than 20,000 calls and operators"
    written(tmp_path / "huge.py", "def g(x):\n" + "    x.view(x[0])\n" * 25_000 + CAST)
    assert found_in(tmp_path, stack_in("huge.py", "to", line=25_002)).lines == (25_003,)


def test_odd_escapes_in_a_source_are_not_our_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    written(tmp_path / "odd.py", 'def f(x):\n    "\\d"\n    assert (x, 1)\n    return x.to() if x is 1 else 0\n')
    assert found_in(tmp_path, stack_in("odd.py", "to")).lines == (4,)
    assert not recwarn.list
