"""What a server's answer tells, as `stepscope diagnose --server-info` reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec.structs import replace

from stepscope.document import ServerFacts
from stepscope.errors import DeviceError, UsageError
from stepscope.model.server_info import ServerInfo, read_server_info


def facts_of(  # noqa: PLR0913 -- what is told beside the answer, by name
    server: str,
    url: str,
    answer: bytes,
    *,
    version: str | None,
    attention_backend: str | None,
    graphs: bool | None,
    context_length: object,
    replicas: int = 1,
) -> ServerFacts:
    """Return the facts of an answer, and which are missing.

    Raises:
        DeviceError: the answer is none of such a server.
    """
    told = _read(url, answer)
    spread = told.parallel
    facts = ServerFacts(
        server=server,
        url=url,
        version=version,
        model=told.model_path,
        tp=None if spread is None else spread.tp,
        ep=None if spread is None else spread.ep,
        dp=None if spread is None else spread.attention_dp * replicas,
        pp=None if spread is None else spread.pp,
        ranks=None if spread is None else spread.tp * spread.pp * replicas,
        kv_cache_dtype=told.kv_cache_dtype,
        pool_slots=told.pool_slots,
        page_size=told.page_size,
        attention_backend=attention_backend,
        graphs=graphs,
        context_length=context_length if isinstance(context_length, int) and context_length > 0 else None,
        not_told=[],
    )
    return replace(facts, not_told=[name for name in facts.__struct_fields__ if getattr(facts, name) is None])


def _read(url: str, answer: bytes) -> ServerInfo:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        path.write_bytes(answer)
        try:
            return read_server_info(path)
        except UsageError as error:
            raise DeviceError(f"{url}: its answer about itself cannot be used ({error})") from error
