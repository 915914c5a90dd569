"""The versioned result of a diagnosis, and its JSON Schema."""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.document.calibration import Calibration, Clocks, Measurement, NotMeasured
from stepscope.document.diagnosis import (
    SCHEMA_VERSION,
    Attribution,
    ClassTime,
    Confidence,
    CouldNotCheck,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Frame,
    Group,
    Hardware,
    KernelTime,
    Model,
    Range,
    RuledOut,
    Severity,
    Spread,
    StepSummary,
    Tool,
    TraceInfo,
    Warning_,
    WhatIf,
)
from stepscope.document.floor import Floor, FloorComponent


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a diagnosis."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Diagnosis)}


__all__ = [
    "SCHEMA_VERSION",
    "Attribution",
    "Calibration",
    "ClassTime",
    "Clocks",
    "Confidence",
    "CouldNotCheck",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Fix",
    "Floor",
    "FloorComponent",
    "Frame",
    "Group",
    "Hardware",
    "KernelTime",
    "Measurement",
    "Model",
    "NotMeasured",
    "Range",
    "RuledOut",
    "Severity",
    "Spread",
    "StepSummary",
    "Tool",
    "TraceInfo",
    "Warning_",
    "WhatIf",
    "json_schema",
]
