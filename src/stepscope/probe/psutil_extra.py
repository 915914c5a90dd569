"""psutil, of the extra `capture`: loaded only where a process is looked at."""

from __future__ import annotations

from typing import Any

from stepscope.errors import PartNotInstalledError


def load_psutil() -> Any:  # noqa: ANN401 -- it has no types
    """Return the module psutil.

    Raises:
        PartNotInstalledError: it is not there.
    """
    try:
        import psutil  # noqa: PLC0415 -- of the extra, and only asked for where a process is looked at
    except ImportError as error:
        raise PartNotInstalledError("probe of a process needs psutil: pip install 'stepscope[capture]'") from error
    return psutil
