"""vLLM's protocol where the real server of tests/servers cannot show it: what older versions do not offer."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.capture.client import Access, Client
from stepscope.capture.server import Recording
from stepscope.capture.traffic import Load, Traffic
from stepscope.capture.vllm import Vllm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

MODELS = {"data": [{"id": "tiny", "root": "/models/tiny", "max_model_len": 1024}]}
API = {
    "components": {
        "schemas": {"StartProfileRequest": {"properties": {"max_iterations": {"anyOf": [{"type": "integer"}]}}}}
    }
}


@contextmanager
def standing_in(api: object) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a vLLM with a profiler, and the bodies that starts were sent with."""
    bodies: list[bytes] = []
    answers = {"/v1/models": MODELS, "/version": {"version": "0.13.0"}, "/openapi.json": api}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            told = answers.get(self.path)
            self._answer(405 if self.path == "/start_profile" else 200 if told else 404, told)

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self._answer(200, None)

        def _answer(self, status: int, told: object) -> None:
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("api", "body"), [(API, {"max_iterations": 7}), ({"components": {}}, None), ({"components": 1}, None), (None, None)]
)
def test_workers_are_told_when_to_end_where_the_server_says_that_they_can_be(api: object, body: Any) -> None:
    async def start(url: str) -> bool:
        async with Client(Access(url)) as client:
            server = Vllm(client)
            await server.describe()
            await server.start_profile(Recording("/traces", 7, stacks=False), 5)
            return server.stops_itself

    with standing_in(api) as (url, bodies):
        assert asyncio.run(start(url)) is (body is not None)
    assert bodies == [b"" if body is None else json.dumps(body, separators=(",", ":")).encode()]


class Bursts:
    """Streams tokens that come one by one, or all that were made in the meantime at once."""

    name = "a server"
    stops_itself = front_end_records = False
    guard_steps = 0

    def __init__(self, together: int) -> None:
        self._together = together

    def generate(self, _prompt: Sequence[int], new_tokens: int) -> Any:
        together = self._together

        class Streamed:
            async def __aenter__(self) -> AsyncIterator[int]:
                return self._tokens()

            async def __aexit__(self, *_: object) -> None:
                pass

            async def _tokens(self) -> AsyncIterator[int]:
                for count in range(1, new_tokens + 1):
                    if count % together == 0:
                        await asyncio.sleep(0.002 * together)
                    yield count

        return Streamed()


@pytest.mark.parametrize(("together", "told"), [(1, True), (20, False)])
def test_times_between_tokens_are_told_only_where_tokens_came_as_they_were_made(together: int, *, told: bool) -> None:
    async def measured() -> float | None:
        server: Any = Bursts(together)
        requests = Traffic(server, Load("decode", 1, 8, 400))
        async with requests.held():
            await requests.settle(20)
            served = requests.served(*await requests.advance(60, 20))
        return None if served.between_tokens_us is None else served.between_tokens_us.median

    median = asyncio.run(measured())
    assert (median is not None) is told
    assert median is None or median >= 2000
