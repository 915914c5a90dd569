"""`stepscope capture`: traces from what runs."""

from __future__ import annotations

from cyclopts import App

from stepscope.cli.capture_torch import capture_torch

capture = App(name="capture", help="Take traces from what runs, as a diagnosis wants them.", version_flags=[])
capture.command(capture_torch, name="torch")
