"""Of a server's command line, the options that choose model, attention backend and cache type: no others."""

from __future__ import annotations

OPTIONS = frozenset(
    {
        *("model", "model-path", "attention-backend", "decode-attention-backend", "prefill-attention-backend"),
        *(
            "kv-cache-dtype",
            "page-size",
            "block-size",
            "dtype",
            "quantization",
            "tensor-parallel-size",
            "tp-size",
            "tp",
        ),
        *("disable-cuda-graph", "enforce-eager"),
    }
)
"""A command line can hold keys, too, which are nobody's to print."""
_LONGEST = 1000


def server_arguments(command: tuple[str, ...]) -> dict[str, str]:
    """Return those options by name; a flag has the value `true`. A later one counts, as for the server."""
    found: dict[str, str] = {}
    for at, argument in enumerate(command):
        name, has_value, value = argument.removeprefix("--").partition("=")
        name = name.replace("_", "-")
        if not argument.startswith("--") or name not in OPTIONS:
            continue
        following = command[at + 1] if at + 1 < len(command) else "--"
        found[name] = (value if has_value else "true" if following.startswith("--") else following)[:_LONGEST]
    return found
