"""Which process of this machine listens to the port of a URL."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

from stepscope.errors import DeviceError, UsageError
from stepscope.probe.interpreter import is_python_name
from stepscope.probe.psutil_extra import load_psutil

_DEFAULT_PORTS = {"http": 80, "https": 443}


def listener(asked: str) -> int:
    """Return the process that listens to a URL's port: of several, the oldest Python."""
    psutil = load_psutil()
    host, port = _address(asked)
    _check_local(asked, host, psutil)
    try:
        sockets = [
            one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        ]
    except psutil.AccessDenied as error:
        raise DeviceError(
            f"{asked}: the listeners of this machine may not be looked at; give the PID instead"
        ) from error
    if not sockets:
        raise DeviceError(f"{asked}: nothing here listens to port {port}; of a server in a container, give the PID")
    pids = sorted({one.pid for one in sockets if one.pid})
    if not pids:
        raise DeviceError(
            f"{asked}: a process of another user listens to port {port}: run probe as that user or as root"
        )
    started = sorted((_started(pid, psutil), pid) for pid in pids)
    pythons = [pid for _, pid in started if _is_python(pid, psutil)]
    oldest: int = (pythons or [pid for _, pid in started])[0]
    return oldest


def _address(asked: str) -> tuple[str, int]:
    try:
        parts = urlsplit(asked if "://" in asked else f"http://{asked}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"{asked}: is no URL ({error})") from error
    if port is None or not 0 < port < 65536:
        raise UsageError(f"{asked}: names no port")
    return parts.hostname or "localhost", port


def _check_local(asked: str, host: str, psutil: Any) -> None:  # noqa: ANN401 -- it has no types
    try:
        named = {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{asked}: the host {host} is not known here; probe must run where the server runs") from error
    own = {one.address.partition("%")[0] for several in psutil.net_if_addrs().values() for one in several}
    any_address = {"0.0.0.0", "::"}  # noqa: S104 -- compared with, not bound to
    if not named & (own | any_address) and not any(one.startswith("127.") or one == "::1" for one in named):
        raise UsageError(f"{asked}: {host} is another machine; probe must run where the server runs")


def _started(pid: int, psutil: Any) -> float:  # noqa: ANN401 -- it has no types
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return float("inf")


def _is_python(pid: int, psutil: Any) -> bool:  # noqa: ANN401 -- it has no types
    try:
        return is_python_name(psutil.Process(pid).exe())
    except psutil.Error:
        return False
