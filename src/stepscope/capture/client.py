"""HTTP to a server: what goes wrong becomes one sentence, and a loopback address never goes through a proxy."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from stepscope.capture.host import is_loopback
from stepscope.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path
    from typing import Self

NOT_FOUND = 404
_REFUSED = 400
_CONNECT_S = 10.0
_MOST_SHOWN = 300
_MOST_BYTES = 64 << 20
"""An answer about a server has some kB; a stream has none of this size either."""


class RefusedError(DeviceError):
    """The server answered, and refused."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnreachableError(DeviceError):
    """The server did not answer, or broke off."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: Path | None = None
    """Certificates to trust, instead of the system's."""
    certificate: Path | None = None
    """The client's own, with its key."""
    insecure: bool = False
    proxy: str | None = None
    """None: as the environment says."""


class Client:
    """One server; to be used as a context manager."""

    def __init__(self, access: Access) -> None:
        try:
            address = httpx.URL(access.url)
        except httpx.InvalidURL as error:
            raise UsageError(f"{access.url}: no address of a server ({error})") from error
        if address.scheme not in {"http", "https"} or not address.host:
            raise UsageError(f"{access.url}: no address of a server; it begins with http:// or https://")
        self.shown = str(address.copy_with(username=None, password=None, query=None, fragment=None)).rstrip("/")
        """The address without a password."""
        self.host, self.port = address.host, address.port or (443 if address.scheme == "https" else 80)
        try:
            self._http = httpx.AsyncClient(
                base_url=str(address.copy_with(query=None, fragment=None)),
                headers=dict(access.headers),
                verify=_trusted(access),
                proxy=access.proxy,
                trust_env=not (access.proxy is None and is_loopback(self.host)),
                follow_redirects=True,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            )
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise UsageError(f"--proxy or --header cannot be used ({error})") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, timeout_s: float = _CONNECT_S) -> bytes | None:
        """Return what is at a path; None: nothing is.

        Raises:
            DeviceError: the server cannot be reached, or refuses.
        """
        response = await self._answer("GET", path, None, timeout_s)
        if response.status_code == NOT_FOUND:
            return None
        self._check(response.status_code, path, response.content)
        return response.content

    async def status(self, path: str, timeout_s: float = _CONNECT_S) -> int:
        """Return the status that a GET is answered with.

        Raises:
            UnreachableError: the server cannot be reached.
        """
        return (await self._answer("GET", path, None, timeout_s)).status_code

    async def post(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> None:
        """Send a request whose answer says nothing but that it was done.

        Raises:
            RefusedError: the server refuses.
            UnreachableError: the server cannot be reached, or does not answer in time.
        """
        response = await self._answer("POST", path, body, timeout_s)
        self._check(response.status_code, path, response.content)

    @asynccontextmanager
    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Yield the server-sent events of an answer as they come.

        Raises:
            RefusedError: the server refuses.
            UnreachableError: the server cannot be reached, or breaks off.
        """
        try:
            limits = httpx.Timeout(None, connect=_CONNECT_S)
            async with self._http.stream("POST", path.lstrip("/"), json=body, timeout=limits) as response:
                if response.status_code >= _REFUSED:
                    self._check(response.status_code, path, await response.aread())
                yield self._parsed(response, path)
        except httpx.HTTPError as error:
            raise self._unreachable(path, error) from error

    async def _parsed(self, response: httpx.Response, path: str) -> AsyncIterator[dict[str, Any]]:
        async for line in response.aiter_lines():
            text = line.removeprefix("data:").strip()
            if not line.startswith("data:") or text == "[DONE]":
                continue
            try:
                event = msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise DeviceError(f"{self.shown}: {path} streams what is no JSON object ({error})") from error
            if "error" in event:
                raise DeviceError(f"{self.shown}: {path} failed: {_said(text.encode())}")
            yield event

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> httpx.Response:
        limits = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            async with self._http.stream(method, path.lstrip("/"), json=body, timeout=limits) as response:
                content = bytearray()
                async for block in response.aiter_bytes():
                    content += block
                    if len(content) > _MOST_BYTES:
                        raise DeviceError(f"{self.shown}: {path} answers with more than {_MOST_BYTES >> 20} MB")
                return httpx.Response(response.status_code, content=bytes(content))
        except httpx.HTTPError as error:
            raise self._unreachable(path, error, timeout_s) from error

    def _check(self, status: int, path: str, content: bytes) -> None:
        if status in {401, 403}:
            why = "needs authentication; give --header 'Authorization: Bearer …'"
            raise RefusedError(f"{self.shown}: {path} {why} (HTTP {status})", status)
        if status >= _REFUSED:
            raise RefusedError(f"{self.shown}: {path} was refused (HTTP {status}: {_said(content)})", status)

    def _unreachable(self, path: str, error: httpx.HTTPError, timeout_s: float | None = None) -> UnreachableError:
        if isinstance(error, httpx.ReadTimeout) and timeout_s is not None:
            return UnreachableError(f"{self.shown}: {path} did not answer within {timeout_s:g} s")
        if isinstance(error, httpx.ConnectTimeout):
            return UnreachableError(f"{self.shown}: cannot be reached (no connection within {_CONNECT_S:g} s)")
        if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):
            return UnreachableError(f"{self.shown}: cannot be reached ({str(error) or type(error).__name__})")
        return UnreachableError(f"{self.shown}: broke off during {path} ({str(error) or type(error).__name__})")


def _said(content: bytes) -> str:
    text = " ".join(content.decode(errors="replace").split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _trusted(access: Access) -> ssl.SSLContext | bool:
    if access.ca is None and access.certificate is None:
        return not access.insecure
    try:
        context = ssl.create_default_context(cafile=access.ca)
        if access.certificate is not None:
            context.load_cert_chain(access.certificate)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-ca or --tls-cert cannot be read ({error})") from error
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
