"""Begins `stepscope capture torch` in each Python of the program, before the program does.

Python imports a module of this name at its start, from this folder, because the command put it first on PYTHONPATH. It
is kept to what every Python 3 understands, for that may be another than the command's.
"""

import os
import sys


def _begin() -> None:
    """Count the program's steps, or report what is missing for it."""
    reports = os.environ.get("STEPSCOPE_PROFILE_REPORTS")
    if not reports or not os.path.isdir(reports):
        return  # the command is gone, and what it started lives on
    from importlib.util import find_spec

    try:
        from stepscope.capture.module_calls import watch
    except (ImportError, SyntaxError):  # a SyntaxError where this Python is older than stepscope
        _report_missing("stepscope", reports)
        return
    if find_spec("torch") is None:
        _report_missing("torch", reports)
        return
    watch()


def _report_missing(package: str, reports: str) -> None:
    """Report it, and end here if this is the program and not one of its helpers: it could not record anything."""
    import json

    with open(os.path.join(reports, f"{os.getpid()}.json"), "w") as stream:
        json.dump({"python": sys.executable, "missing": package}, stream)
    if os.environ.get("STEPSCOPE_PROFILE_COMMAND") == str(os.getppid()):
        os._exit(4)


def _run_the_next() -> None:
    """Import the module of this name that would have been found without this one."""
    from importlib import import_module

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    this = sys.modules.pop(__name__)
    try:
        import_module(__name__)
    except ImportError as error:
        sys.modules[__name__] = this
        if error.name != __name__:
            raise


_begin()
_run_the_next()
