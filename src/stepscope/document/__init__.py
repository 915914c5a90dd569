"""The versioned result of a diagnosis, and its JSON Schema."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from stepscope.document.calibration import Calibration, Clocks, Measurement, NotMeasured
from stepscope.document.capture import (
    Capture,
    CapturedTrace,
    CaptureProblem,
    Served,
    ServerFacts,
    TraceKind,
    Traffic,
    Unrecorded,
)
from stepscope.document.comparison import (
    ClassDelta,
    Comparison,
    FindingDelta,
    FindingDeltas,
    Foretold,
    KernelDelta,
    PredictionResult,
    SideOfSteps,
    StepDelta,
    Unpaired,
    Verdict,
    WaterfallDelta,
    WorkSide,
)
from stepscope.document.diagnosis import (
    SCHEMA_VERSION,
    AtBatch,
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
    RankArrival,
    RuledOut,
    Rung,
    Severity,
    Spread,
    StepSummary,
    Tool,
    TraceInfo,
    Warning_,
    WhatIf,
)
from stepscope.document.floor import (
    Amortisation,
    BatchCost,
    BatchPoint,
    Floor,
    FloorCase,
    FloorComponent,
    GrowthPoint,
    WaterfallRow,
)
from stepscope.document.prediction import PredictedChange, PredictedPhase, Prediction
from stepscope.document.probe import (
    Answer,
    DeterminedBy,
    Gpu,
    HeadSizes,
    Interpreter,
    MlaBackend,
    Package,
    Probe,
    Server,
    Site,
)


def encodable(path: str) -> str:
    """Return a path as text that JSON can hold: bytes of it that are no UTF-8 come out escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a diagnosis."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Diagnosis)}


__all__ = [
    "SCHEMA_VERSION",
    "Amortisation",
    "Answer",
    "AtBatch",
    "Attribution",
    "BatchCost",
    "BatchPoint",
    "Calibration",
    "Capture",
    "CaptureProblem",
    "CapturedTrace",
    "ClassDelta",
    "ClassTime",
    "Clocks",
    "Comparison",
    "Confidence",
    "CouldNotCheck",
    "DeterminedBy",
    "Diagnosis",
    "Evidence",
    "Finding",
    "FindingDelta",
    "FindingDeltas",
    "Fix",
    "Floor",
    "FloorCase",
    "FloorComponent",
    "Foretold",
    "Frame",
    "Gpu",
    "Group",
    "GrowthPoint",
    "Hardware",
    "HeadSizes",
    "Interpreter",
    "KernelDelta",
    "KernelTime",
    "Measurement",
    "MlaBackend",
    "Model",
    "NotMeasured",
    "Package",
    "PredictedChange",
    "PredictedPhase",
    "Prediction",
    "PredictionResult",
    "Probe",
    "Range",
    "RankArrival",
    "RuledOut",
    "Rung",
    "Served",
    "Server",
    "ServerFacts",
    "Severity",
    "SideOfSteps",
    "Site",
    "Spread",
    "StepDelta",
    "StepSummary",
    "Tool",
    "TraceInfo",
    "TraceKind",
    "Traffic",
    "Unpaired",
    "Unrecorded",
    "Verdict",
    "Warning_",
    "WaterfallDelta",
    "WaterfallRow",
    "WhatIf",
    "WorkSide",
    "encodable",
    "json_schema",
]
