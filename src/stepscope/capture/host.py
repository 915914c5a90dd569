"""The server as a process of this machine, if it is one: its command line tells what it does not over HTTP."""

from __future__ import annotations

import ipaddress
import re
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECRET = re.compile(r"(key|password|secret|token)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Process:
    """What the operating system tells about a server."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Empty where it may not be read."""

    def line(self, *, without: Sequence[str] = ()) -> str:
        """Return the command line without secrets and without some options and their values."""
        kept: list[str] = []
        words = iter(self.command)
        for word in words:
            option, equals, _ = word.partition("=")
            if any(option == name or option.startswith(f"{name}.") for name in without):
                if not equals:
                    next(words, None)
            elif is_secret(option) and option.startswith("--"):
                kept.append(f"{option}=…")
                if not equals:
                    next(words, None)
            else:
                kept.append(word)
        return shlex.join(kept).replace("'…'", "…")

    def option(self, name: str) -> str | None:
        """Return the last value of an option."""
        value = None
        for word, after in zip(self.command, [*self.command[1:], ""], strict=True):
            option, equals, text = word.partition("=")
            if option == name:
                value = text if equals else after
        return value


def is_secret(name: str) -> bool:
    """Tell whether an option or setting of this name holds what must not be written down."""
    return _SECRET.search(name.replace("-", "_")) is not None


def is_loopback(host: str) -> bool:
    """Tell whether a host is this one by its name alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_here(host: str) -> bool:
    """Tell whether a host is this machine."""
    if is_loopback(host):
        return True
    ours = {address.address.partition("%")[0] for found in psutil.net_if_addrs().values() for address in found}
    try:
        return any(found[4][0] in ours for found in socket.getaddrinfo(host, None))
    except OSError:
        return False


def listening(port: int, names: Sequence[str]) -> Process | None:
    """Return the process of this machine that listens at a port, if its command line has one of these names."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if not listens or not connection.pid:
                continue
            with suppress(psutil.Error, OSError):
                process = psutil.Process(connection.pid)
                command = process.cmdline()
                if not any(name in word for word in command for name in names):
                    continue
                environment: dict[str, str] = {}
                with suppress(psutil.Error, OSError):
                    environment = process.environ()
                return Process(command, environment)
    return None
