"""Record the traces of `tests/servers/traces` anew: `python -m scripts.record_vllm ENVIRONMENT`.

A real vLLM server of the tests' tiny model answers one request of 16 prompt tokens and 6 new ones: a prefill and five
decode steps. The names of the machine and of its folders are then replaced; nothing else is changed or left out.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.vllm_server import serving

TRACES = Path(__file__).parents[1] / "tests" / "servers" / "traces"
PROMPT = list(range(16, 32))
NEW_TOKENS = 6


def record(environment: Path) -> None:
    """Replace the recorded traces.

    Raises:
        RuntimeError: the server did not start, or refused.
    """
    with TemporaryDirectory() as folder:
        told = {"torch_profiler_record_shapes": True, "torch_profiler_with_stack": True}
        with serving(environment, Path(folder), profiler=told) as server:
            statuses = [
                server.complete([token + 100 for token in PROMPT], NEW_TOKENS),  # the first request warms up
                server.post("/start_profile"),
                server.complete(PROMPT, NEW_TOKENS),
                server.post("/stop_profile", timeout_s=300),
            ]
        if statuses != [200] * 4:
            raise RuntimeError(f"the server answered {statuses}")
        for old in TRACES.glob("*.json.gz"):
            old.unlink()
        for trace in sorted(server.traces.glob("*.json.gz")):
            kept = TRACES / re.sub(r"^.*_\d+\.async_llm\.", "host_1.async_llm.", trace.name)
            kept.write_bytes(_packed(_without_machine(json.loads(gzip.decompress(trace.read_bytes())), environment)))
            sys.stdout.write(f"{kept.name}: {kept.stat().st_size:,} bytes\n")


def _without_machine(trace: dict[str, object], environment: Path) -> bytes:
    trace["host_name"] = "host"
    trace["traceName"] = "/tmp/trace.json"  # noqa: S108 -- a name, not a file
    text = json.dumps(trace, separators=(",", ":"))
    replaced = {str(environment): "/srv/env", sys.base_prefix: "/srv/python", str(Path.home()): "/srv/home"}
    for path, neutral in replaced.items():
        text = text.replace(path, neutral)
    return text.encode()


def _packed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)  # 31: a gzip header that holds neither a time nor a name
    return packer.compress(data) + packer.flush()


if __name__ == "__main__":
    record(Path(sys.argv[1]).absolute())
