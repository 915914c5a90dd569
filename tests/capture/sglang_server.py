"""A stand-in for an SGLang server, built from its documented protocol: it streams tokens, and writes traces late.

A start of the profiler with `num_steps` returns at once; the recording ends by itself once so many steps were begun
(they are counted before a step, so that one more must be asked for), and each rank's file comes later, not all at once.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kineto import Kineto

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_S = 0.004
INFO: dict[str, Any] = {
    "model_path": "zai-org/GLM-5",
    "served_model_name": "glm-5",
    "tp_size": 2,
    "dp_size": 1,
    "ep_size": 1,
    "kv_cache_dtype": "fp8_e4m3",
    "page_size": 64,
    "attention_backend": "flashinfer",
    "disable_cuda_graph": False,
    "api_key": "a-secret",
    "version": "0.5.14",
    "context_length": 4096,
    "internal_states": [{"max_total_num_tokens": 495_552}],
}


@dataclass
class Behaviour:
    """What goes wrong with it."""

    ranks: int = 2
    missing: int = 0
    """Ranks whose file never comes."""
    refuses: bool = False
    """Answers a start with an error."""
    never_ends: bool = False
    """Records until it is told to stop."""
    stop_hangs_s: float = 0.0
    cut: bool = False
    """The files end too early."""
    without_gpu_events: bool = False
    late_s: float = 0.05
    """From the last step to the first file; each further rank takes as long again."""
    key: str | None = None
    """Of every request."""
    dies_after_steps: int | None = None
    """Steps of a recording after which it is gone."""
    info: dict[str, Any] = field(default_factory=lambda: dict(INFO))


class Sglang:
    """The server's state."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.lock = threading.Lock()
        self.starts: list[dict[str, Any]] = []
        self.stops = 0
        self.prompts: list[dict[str, Any]] = []
        self.running = 0
        self.most_at_once = 0
        self.steps_left: int | None = None
        """Of the recording under way; None: none is."""
        self.recorded = 0
        self.gone = False
        self._http: ThreadingHTTPServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def is_recording(self) -> bool:
        return self.steps_left is not None

    def step(self) -> None:
        """Take note that a step begins."""
        with self.lock:
            if self.steps_left is None:
                return
            self.steps_left -= 1
            if self.steps_left <= 0 and not self.behaviour.never_ends:  # this step is not recorded any more
                self._end()
            else:
                self.recorded += 1
                if self.recorded == self.behaviour.dies_after_steps:
                    self.gone = True

    def start(self, body: dict[str, Any]) -> None:
        with self.lock:
            self.starts.append(body)
            self.steps_left, self.recorded = body["num_steps"], 0

    def stop(self) -> None:
        time.sleep(self.behaviour.stop_hangs_s)
        with self.lock:
            self.stops += 1
            if self.is_recording:
                self._end()

    def _end(self) -> None:
        self.steps_left = None
        threading.Thread(target=self._write, args=(self.starts[-1], self.recorded), daemon=True).start()

    def _write(self, body: dict[str, Any], steps: int) -> None:
        for rank in range(self.behaviour.ranks - self.behaviour.missing):
            time.sleep(self.behaviour.late_s)
            content = gzip.compress(json.dumps(self._trace(rank, steps)).encode())
            if self.behaviour.cut:
                content = content[: len(content) // 2]
            path = Path(body["output_dir"]) / f"{time.time()}-TP-{rank}.trace.json.gz"
            with path.open("wb") as file:  # it grows while it is looked at
                for part in (content[: len(content) // 3], content[len(content) // 3 :]):
                    file.write(part)
                    file.flush()
                    time.sleep(0.02)

    def _trace(self, rank: int, steps: int) -> dict[str, Any]:
        trace = Kineto(distributedInfo={"backend": "nccl", "rank": rank, "world_size": self.behaviour.ranks})
        for step in range(steps):
            trace.annotation("step[DECODE bs=1]", 10 + 1000 * step, 900)
            for kernel in range(5):
                if self.behaviour.without_gpu_events:
                    trace.op("aten::mm", 12 + 1000 * step + 20 * kernel, 10)
                else:
                    trace.call(f"gemm_{kernel}", at=12 + 1000 * step + 20 * kernel, duration=100)
        return trace.document()


class _Handler(BaseHTTPRequestHandler):
    sglang: Sglang
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._is_admitted():
            if self.path == "/get_server_info":
                self._answer(200, self.sglang.behaviour.info)
            else:
                self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not self._is_admitted():
            return
        if self.path == "/generate":
            self._generate(body)
        elif self.path == "/start_profile" and not self.sglang.behaviour.refuses:
            self.sglang.start(body)
            self._answer(200, {})
        elif self.path == "/start_profile":
            self._answer(500, {"error": "Profiling is already in progress. Call /stop_profile first."})
        elif self.path == "/stop_profile":
            self.sglang.stop()
            self._answer(200, {})

    def _generate(self, body: dict[str, Any]) -> None:
        with self.sglang.lock:
            self.sglang.prompts.append(body)
            self.sglang.running += 1
            self.sglang.most_at_once = max(self.sglang.most_at_once, self.sglang.running)
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for token in range(body["sampling_params"]["max_new_tokens"]):
                self.sglang.step()
                if self.sglang.gone:
                    break
                time.sleep(STEP_S)
                event = {"output_ids": [token], "meta_info": {"completion_tokens": token + 1}}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            else:
                self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client does not want the rest
        finally:
            self.close_connection = True
            with self.sglang.lock:
                self.sglang.running -= 1

    def _is_admitted(self) -> bool:
        if self.sglang.gone:
            self.close_connection = True
            return False
        if self.sglang.behaviour.key and self.headers.get("Authorization") != f"Bearer {self.sglang.behaviour.key}":
            self._answer(401, {"error": "Unauthorized"})
            return False
        return True

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[Sglang]:
    """Serve on loopback, on a port of its own."""
    sglang = Sglang(behaviour or Behaviour())

    sglang._http = http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"sglang": sglang}))  # noqa: SLF001 -- made here
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield sglang
    finally:
        http.shutdown()
        http.server_close()
