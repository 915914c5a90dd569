"""The keys around a trace's events, and what they tell: rank, device, or that it is no trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import NotATraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.pipeline.load.scanner import Trailer

_RANK_IN_NAME = re.compile(r"(?:^|[-_.])(?:TP-|rank[-_]?)(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK_LIMIT = 10**9
_TOOL_KEYS = (
    ("nodes", "a PyTorch execution trace (graph of operators); record one with torch.profiler instead"),
    ("traces", "a collection of traces; give the trace files themselves"),
    ("schema_version", "a stepscope document; give it the trace that it was made from"),
)


def header_keys(location: str, text: bytes) -> dict[str, Any]:
    """Return the keys before the events.

    Raises:
        NotATraceError: they are damaged.
    """
    if text.strip() == b"[":
        return {}
    try:
        keys = msgspec.json.decode(text + b"]}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotATraceError(
            f"{location}: not a profiler trace: the keys before its events are damaged ({error})"
        ) from None
    del keys["traceEvents"]
    return dict(keys)


def trailer_keys(part: Trailer) -> dict[str, Any]:
    """Return the keys after the events; none where the trailer is damaged, since no event depends on them."""
    text = part.text.strip().removeprefix(b",")
    try:
        keys = msgspec.json.decode(b"{" + text) if text.rstrip().endswith(b"}") else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return keys if isinstance(keys, dict) else {}


def holds_another_trace(part: Trailer) -> bool:
    """Tell whether traces were written one after another into one file."""
    return b'"traceEvents"' in part.text or part.text.lstrip().startswith((b"[", b"{"))


def looks_like(text: bytes) -> str:
    """Say what a document without trace events is."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return 'it has no "traceEvents" and is not a list of events'
    if isinstance(document, dict):
        for key, what in _TOOL_KEYS:
            if key in document:
                return f"it looks like {what}"
        keys = ", ".join(sorted(map(str, document))[:5]) or "none"
        return f'it is JSON without "traceEvents" (its keys: {keys})'
    return "it is JSON, but neither an object nor a list of events"


def rank_of(header: Mapping[str, Any], name: str) -> int | None:
    """Return the rank that the trace tells, or else its file's name."""
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if type(rank) is int and 0 <= rank < _RANK_LIMIT:
        return rank
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


def device_name(header: Mapping[str, Any], used: set[int]) -> str | None:
    """Return the name of the devices in use; None where it is not recorded or several kinds are in use."""
    properties = header.get("deviceProperties")
    devices = [device for device in properties if isinstance(device, dict)] if isinstance(properties, list) else []
    in_use = [device for device in devices if device.get("id") in list(used)]
    names = {str(device.get("name") or "") for device in in_use or devices}
    return (names.pop() or None) if len(names) == 1 else None
