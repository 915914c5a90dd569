"""Paths to traces: what each path names is read, one trace after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stepscope.errors import NotATraceError, UsageError
from stepscope.pipeline.load import find_traces, is_folder, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stepscope.pipeline.load import Cache, Listener
    from stepscope.trace import Trace


class NotRead(NamedTuple):
    """A file that is no trace, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the traces that paths name."""

    listener: Listener | None = None
    """Told how far reading is, and what was left out."""
    cache: Cache | None = None
    """Where traces are kept, so that they need not be read again."""

    def one(self, path: str | Path) -> Trace:
        """Read the trace of a file, or of a folder that holds one.

        Raises:
            UsageError: the path does not exist, or the folder holds several files that may be traces.
            NotATraceError: the file is no trace, or the folder holds none.
        """
        files = find_traces(path)
        if len(files) > 1:
            raise UsageError(f"{path}: the folder holds {len(files)} files that may be traces; name one of them")
        return self._load(files[0])

    def count(self, paths: Iterable[str | Path]) -> int:
        """Return how many files paths name, traces or not.

        Raises:
            UsageError: a path does not exist.
            NotATraceError: a folder holds no file that could be a trace.
        """
        return sum(len(find_traces(path)) for path in paths)

    def each(self, paths: Iterable[str | Path]) -> Iterator[Trace]:
        """Read trace files, or folders of them; of several, what is no trace is passed over.

        Raises:
            UsageError: a path does not exist.
            NotATraceError: the only file is no trace, or a folder holds nothing else.
        """
        return (found for found in self.attempts(paths) if not isinstance(found, NotRead))

    def attempts(self, paths: Iterable[str | Path]) -> Iterator[Trace | NotRead]:
        """Read as `each` does, and yield what was passed over too."""
        files = [(path, find_traces(path, self.listener)) for path in paths]
        alone = sum(len(named) for _, named in files) == 1
        read = 0
        for path, named in files:
            passed_over = 0
            for file in named:
                try:
                    trace = self._load(file)
                except NotATraceError as error:
                    if alone and not is_folder(path):
                        raise
                    passed_over += 1
                    self.warn(f"passed over {error}")
                    yield NotRead(file, str(error))
                else:
                    read += 1
                    yield trace
                    del trace  # so that it is not held while the next is read
            if passed_over == len(named) and is_folder(path):
                raise NotATraceError(f"{path}: the folder holds no trace, only other JSON files ({passed_over})")
        if not read:
            raise NotATraceError(f"none of the {len(files)} files is a trace")

    def warn(self, sentence: str) -> None:
        """Tell the listener, if there is one, what makes an answer doubtful."""
        if self.listener is not None:
            self.listener.warns(sentence)

    def _load(self, file: str) -> Trace:
        return load(file, listener=self.listener, cache=self.cache)
