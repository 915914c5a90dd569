"""A real vLLM server of a tiny model with dummy weights, on loopback, on a machine that needs no GPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Two layers, so that a trace of a few steps stays near 1 MB. Attention as in a model with grouped queries.
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}

# The server takes about 20 s to answer with one thread of a 2-core machine.
_READY_WITHIN_S = 240
_GONE_WITHIN_S = 15

# For a machine that serves and runs the tests at the same time: one thread, 1 GB of KV cache, nothing fetched or sent.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class Server:
    """A running server: its address, its processes, and the folder that its profiler writes to."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, traces: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.pid = process.pid
        self.traces = traces
        self.log = log
        self._process = process

    def post(self, path: str, body: object = None, timeout_s: float = 60) -> int:
        """Send a request as a client of its own would; return the status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method="POST")  # noqa: S310 -- loopback
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 -- loopback
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def complete(self, prompt: list[int], tokens: int) -> int:
        """Ask for exactly this many tokens; return the status."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return self.post("/v1/completions", body)

    def processes(self) -> list[int]:
        """Return the server and all that it started (they share its process group)."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getpgid(int(entry.name)) == self.pid:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
        return found

    def kill(self) -> None:
        """End all of its processes at once, as the kernel does when memory runs out."""
        if self.processes():
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(_GONE_WITHIN_S)

    def stop(self) -> None:
        """Ask it to end; kill what is left of it after a while."""
        if self.processes():
            os.killpg(self.pid, signal.SIGTERM)
        until = time.monotonic() + _GONE_WITHIN_S
        while self.processes() and time.monotonic() < until:
            self._process.poll()  # a child that ended stays in the group until its parent asks for it
            time.sleep(0.1)
        self.kill()

    def wait_until_ready(self) -> None:
        """Return once it answers.

        Raises:
            RuntimeError: it ended, or did not answer in time; with the end of its log.
        """
        until = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):  # noqa: S310 -- loopback
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"vLLM is not ready: {self.log.read_text(errors='replace')[-3000:]}")


@contextmanager
def serving(vllm: Path, folder: Path, *, profiler: Mapping[str, object] | None) -> Iterator[Server]:
    """Serve the tiny model from the environment `vllm`; files go to `folder`; all processes end with the block.

    `profiler` is what `--profiler-config` says beside the folder of the traces; without it, it is not given at all.
    """
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    traces = folder / "traces"
    port = _free_port()
    command: list[str | Path] = [vllm / "bin" / "python", vllm / "bin" / "vllm", "serve", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--served-model-name", "tiny", "--load-format", "dummy", "--skip-tokenizer-init"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"]
    if profiler is not None:
        config = {"profiler": "torch", "torch_profiler_dir": str(traces), **profiler}
        command += ["--profiler-config", json.dumps(config)]
    log = folder / "vllm.log"
    environment = {**os.environ, **_ENVIRONMENT, "VLLM_CACHE_ROOT": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)  # the server's packages are its own
    # Its sockets lie in the folder for temporary files, whose path must be short.
    with TemporaryDirectory(prefix="vllm-") as short, log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 -- our own command
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "TMPDIR": short},
            cwd=folder,
            start_new_session=True,
        )
        server = Server(process, port, traces, log)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
