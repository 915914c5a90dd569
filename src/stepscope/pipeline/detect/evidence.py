"""What any rule can show of some kernels of a phase: how many, how long, in which parts, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.document import Evidence, Group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.pipeline.detect.origin import Origin
    from stepscope.pipeline.detect.placement import Placement

MOST_GROUPS = 32
"""More parts of a finding than that are not read."""


def work_evidence(placement: Placement, rows: NDArray[np.bool_]) -> Evidence:
    """Return the evidence of some kernels, shape [kernels]; the single fields are of the largest group."""
    groups = placement.parts_of(rows)
    largest = groups[0]
    return Evidence(
        op=largest.op,
        kernel=largest.kernel,
        calls_per_step=placement.calls_per_step(rows),
        us_per_call=largest.us_per_call,
        groups=[
            Group(
                kernel=group.kernel,
                tensor=None,
                shape=next(iter(group.input_shapes or ()), None),
                calls_per_step=group.calls_per_step,
                time_us_per_step=group.time_us_per_step,
            )
            for group in groups[:MOST_GROUPS]
        ],
    )


def with_origin(evidence: Evidence, origin: Origin) -> Evidence:
    """Add where the work comes from; a statement only where it is certain."""
    known = origin.statement is not None and len(origin.statement.lines) == 1
    return replace(
        evidence,
        modules=origin.modules,
        layers=origin.layers,
        frames=origin.frames,
        statement=origin.statement.text if origin.statement and known else None,
        statement_at=origin.where if known else None,
    )
