"""What a server tells of its pool decides where the size of a launch alone leaves doubt."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work, graphed
from tests.examples.kv_pool_cast import LAYERS, REST, WRITE, whole_pool_cast_in_a_graph
from tests.kernel_names import direct_copy

from stepscope import diagnose
from stepscope.document import Confidence, Diagnosis
from stepscope.model import load_model

if TYPE_CHECKING:
    from tests.kineto import Kineto

SLOTS = 65_536
"""What the example's pool has: 73,728 blocks of 512 elements."""


def told(trace: Kineto, **server: object) -> Diagnosis:
    info = {"model_path": "zai-org/GLM-5", "tp_size": 8, "kv_cache_dtype": "fp8_e4m3", "page_size": 1, **server}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "info.json"
        path.write_text(json.dumps(info))
        return diagnose([trace.save(Path(folder) / "t.json")], server_info=path, context=1024)


def test_the_example_has_the_model_of_the_server() -> None:
    assert len(load_model("glm-5").layers) == LAYERS


@pytest.mark.parametrize(("slots", "page"), [(SLOTS, 1), (SLOTS - 1, 1), (SLOTS - 64, 64)])
def test_slots_that_the_server_tells_are_as_good_as_a_shape(slots: int, page: int) -> None:
    """The tensor has the slots, and a page more in SGLang."""
    found = finding(told(whole_pool_cast_in_a_graph(), max_total_num_tokens=slots, page_size=page), "kv-pool-cast")
    assert found.confidence is Confidence.HIGH
    assert found.evidence.live_fraction == 1024 / SLOTS
    assert f"the server tells of {slots:,}" in found.notes[0]
    assert found.notes[1].endswith("Float8_e4m3fn is told.")


def test_without_slots_it_stays_an_inference() -> None:
    found = finding(told(whole_pool_cast_in_a_graph()), "kv-pool-cast")
    assert found.confidence is Confidence.MEDIUM


def test_of_several_fitting_counts_the_servers_is_taken() -> None:
    """Blocks of 1,024 elements: 278,748 hold 495,551 rows and a bit, or 495,552."""
    cast = Work(direct_copy("c10::BFloat16", elements_a_thread=8), 850, grid=(278_748, 1, 1))
    trace = graphed([[WRITE, cast, *REST] * LAYERS] * 3)
    found = finding(told(trace, max_total_num_tokens=495_550), "kv-pool-cast")
    assert found.evidence.input_shape == [495_551, 1, 576]


def test_a_cast_of_other_slots_is_not_called_the_pools() -> None:
    diagnosis = told(whole_pool_cast_in_a_graph(), max_total_num_tokens=495_552)
    assert "kv-pool-cast" not in rules(diagnosis)
    asked = [row for row in diagnosis.could_not_check if row.rule == "kv-pool-cast"]
    assert [row.missing for row in asked] == [
        "a cast of 65,536 slots that runs 78 times a step; the server tells 495,552"
    ]


def test_a_pool_of_16_bits_is_not_cast_to_16_bits() -> None:
    diagnosis = told(whole_pool_cast_in_a_graph(), max_total_num_tokens=SLOTS, kv_cache_dtype="bfloat16")
    assert "kv-pool-cast" not in rules(diagnosis)


def test_another_type_of_fp8_is_believed() -> None:
    diagnosis = told(whole_pool_cast_in_a_graph(), max_total_num_tokens=SLOTS, kv_cache_dtype="fp8_e5m2")
    assert finding(diagnosis, "kv-pool-cast").evidence.source_dtype == "Float8_e5m2"
