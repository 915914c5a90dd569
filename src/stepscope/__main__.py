"""The entry point, also of `python -m stepscope`: small, so that an interrupt during imports is answered too."""

import sys


def run() -> int:
    """Run the command line and return its exit code."""
    try:
        from stepscope.cli import main  # noqa: PLC0415 -- takes a tenth of a second
    except KeyboardInterrupt:
        sys.stderr.write("stepscope: interrupted\n")
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
