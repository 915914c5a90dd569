"""Fuzz the loader: mutate small real traces, plain, gzip and zstd, and check that no input does harm.

    pip install atheris
    python scripts/fuzz_loader.py findings -max_total_time=600

For each input only stepscope's own errors may be raised, in one sentence; it must end within 5 s and without taking
much memory; and the diagnosis of what loads must be valid by its schema. An input that breaks this is written into the
folder `findings`, named after what went wrong, and fuzzing goes on. Further arguments go to libFuzzer. atheris has
wheels for Linux only.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import sys
import tempfile
import time
import zlib
from collections import Counter
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atheris
import zstandard

with atheris.instrument_imports(include=["stepscope"]):
    import jsonschema
    import msgspec

    from stepscope import diagnose
    from stepscope.document import json_schema
    from stepscope.errors import StepscopeError

SECONDS = 5.0
MEMORY_BYTES = 1 << 30
"""Peak memory of the process that starts a finding; an idle one takes 0.2 GB."""
MAX_INPUT_BYTES = 64 << 10
SEED_EVENTS = 12
REPORT_SECONDS = 60.0
WORDS = (
    *(b"{", b"}", b"[", b"]", b",", b'"', b":", b"\\", b"}, {", b"]}", b'{"traceEvents": ['),
    *(b"NaN", b"-Infinity", b"null", b"1e400", b"-1", b"1712195495519689.047", b"9223372036854775808"),
    *(b'"ph": "X"', b'"cat": "kernel"', b'"ts": ', b'"dur": ', b'"args": {', b'"correlation": ', b'"grid": [1, 1, 1]'),
    *(b'"Input Dims": [[1, 2], []]', b"\\u", b"\\ud800", b"\xff", b"\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"),
)


if TYPE_CHECKING:
    from collections.abc import Iterator


class Fuzzer:
    """Tries inputs and keeps those that do harm."""

    def __init__(self, findings: Path, scratch: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.began = self.reported = time.monotonic()
        self.slowest = 0.0
        self._findings = findings
        self._path = scratch / "trace"
        self._valid = jsonschema.Draft202012Validator(json_schema())
        self._most_memory = MEMORY_BYTES

    def try_input(self, data: bytes) -> None:
        """Diagnose an input."""
        self._path.write_bytes(data)
        began = time.monotonic()
        try:
            outcome = self._outcome()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 -- whatever it is, it is a finding; a panic is no Exception
            outcome = self._finding(data, _place(error))
        seconds = time.monotonic() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS:
            self._finding(data, "slow")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if memory > self._most_memory:
            self._most_memory = 2 * memory
            self._finding(data, "memory")
        self.outcomes[outcome] += 1
        if time.monotonic() - self.reported > REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Print what has happened so far."""
        self.reported = time.monotonic()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        sys.stderr.write(
            f"{self.reported - self.began:.0f} s, {self.outcomes.total()} inputs: {dict(self.outcomes)}; "
            f"slowest {self.slowest:.2f} s, peak {memory} MB\n"
        )
        sys.stderr.flush()

    def _outcome(self) -> str:
        try:
            diagnosis = diagnose([self._path], model="glm-5", tp=8)
        except StepscopeError as error:
            if "\n" in str(error):
                raise ValueError("an error of more than one sentence") from error
            return "refused"
        self._valid.validate(json.loads(msgspec.json.encode(diagnosis)))
        return "diagnosed with warnings" if diagnosis.traces[0].warnings else "diagnosed"

    def _finding(self, data: bytes, what: str) -> str:
        path = self._findings / f"{what}-{blake2b(data, digest_size=4).hexdigest()}"
        if len(list(self._findings.glob(f"{what}-*"))) < 3:
            path.write_bytes(data)
        return f"FINDING {what}"


def _place(error: BaseException) -> str:
    """Return where an error arose, as part of a file's name."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "stepscope" in file:
            place = f"{Path(file).stem}-{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}-{place}"


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change the text within packed data as often as the packed data itself, and whole words as often as bytes."""
    chance = random.Random(seed)  # noqa: S311 -- no secret
    text, pack = _unpacked(data) if chance.random() < 0.7 else (data, bytes)
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        at = chance.randint(0, len(text))
        if kind < 0.3:
            text = text[:at] + chance.choice(WORDS) + text[at + chance.choice((0, 0, 1, 8)) :]
        elif kind < 0.4:
            text = text[:at] + text[at + chance.randint(1, 40) :]
        elif kind < 0.45:
            text = text[:at]
        elif kind < 0.5:
            text = text[:at] + text[max(at - chance.randint(1, 2000), 0) :]
        else:
            text = atheris.Mutate(bytes(text[:max_size]), max_size)
    return bytes(pack(text))[:max_size]


def _unpacked(data: bytes) -> tuple[bytes, Any]:
    try:
        if data.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(31).decompress(data, 1 << 20), lambda text: gzip.compress(text, 1, mtime=0)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)[: 1 << 20], zstandard.compress
    except (zlib.error, zstandard.ZstdError):
        pass
    return data, bytes


def write_seeds(folder: Path) -> None:
    """Cut small traces out of the bundled samples, as an object and as a list, packed and not."""
    for sample in sorted(files("stepscope").joinpath("samples").iterdir(), key=str):
        if not sample.name.endswith(".json.gz"):
            continue
        document = json.loads(gzip.decompress(sample.read_bytes()))
        events = list(_few(document["traceEvents"]))
        text = json.dumps({**document, "traceEvents": events}).encode()
        seeds = {
            "plain": text,
            "gz": gzip.compress(text, mtime=0),
            "zst": zstandard.compress(text),
            "list": json.dumps(events, indent=1).encode(),
            "twice": text + text,
        }
        for name, content in seeds.items():
            (folder / f"{sample.name}-{name}").write_bytes(content[:MAX_INPUT_BYTES])


def _few(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the first events of each category, and the launches of those kernels."""
    seen: Counter[str] = Counter()
    launched: set[Any] = set()
    for event in sorted(events, key=lambda event: event.get("cat") != "kernel"):
        category, correlation = str(event.get("cat")), event.get("args", {}).get("correlation")
        seen[category] += 1
        if seen[category] <= SEED_EVENTS or (category == "cuda_runtime" and correlation in launched):
            launched.add(correlation)
            yield event


def main() -> None:
    """Fuzz until libFuzzer has had enough."""
    findings = Path(sys.argv[1])
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        write_seeds(seeds)
        fuzzer = Fuzzer(findings, Path(folder))
        arguments = [sys.argv[0], f"-max_len={MAX_INPUT_BYTES}", "-timeout=60", "-rss_limit_mb=4096"]
        atheris.Setup([*arguments, *sys.argv[2:], str(seeds)], fuzzer.try_input, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
