"""Errors that a user can meet, each with the exit code that the contract gives it."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    THRESHOLD_REACHED = 1
    WRONG_USAGE = 2
    UNREADABLE_INPUT = 3
    PART_NOT_INSTALLED = 4
    REMOTE_FAILURE = 5
    INTERRUPTED = 130


class StepscopeError(Exception):
    """One sentence for the user: what is wrong, where, and what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNREADABLE_INPUT


class UsageError(StepscopeError):
    """The command line asks for something that does not exist or has no meaning."""

    exit_code = ExitCode.WRONG_USAGE


class PartNotInstalledError(StepscopeError):
    """A command needs an optional part; the message names what installs it."""

    exit_code = ExitCode.PART_NOT_INSTALLED


class DeviceError(StepscopeError):
    """A server or device is not there, or did not do what it should."""

    exit_code = ExitCode.REMOTE_FAILURE


class NotATraceError(StepscopeError):
    """The input cannot be read as a profiler trace."""

    exit_code = ExitCode.UNREADABLE_INPUT
