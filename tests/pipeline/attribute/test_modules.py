"""Which numbers of modules are the model's layers, and which are not certain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.kineto import Kineto
from tests.stages import stepped

from stepscope.pipeline.attribute.modules import Modules, layers_of, modules_of_hierarchy

if TYPE_CHECKING:
    from collections.abc import Sequence

Tree = tuple[str, "Sequence[Tree]"]
"""A call of a module, and those within it."""


def record(trace: Kineto, tree: Sequence[Tree], at: float) -> float:
    for name, inner in tree:
        begin, at = at, record(trace, inner, at + 1)
        trace.frame(f"nn.Module: {name}", begin, at - begin)
        at += 1
    return at


def layers(*passes: Sequence[Tree]) -> dict[str, set[int]]:
    """Return the layers of each module, by name; those without one are left out."""
    trace, at = Kineto(), 10.0
    trace.call("any", at=1, duration=1)
    for tree in passes:
        at = record(trace, tree, at) + 5
    linked, _ = stepped(trace)
    modules = Modules.of(linked.trace)
    found: dict[str, set[int]] = {}
    for module, number, layer in zip(
        modules.calls["module"].cast(str), modules.calls["number"], modules.layer.tolist(), strict=True
    ):
        if layer >= 0:
            found.setdefault(f"{module}_{number}", set()).add(layer)
    return found


def model(numbers: Sequence[int], name: str = "Model_0") -> list[Tree]:
    return [(name, [("Embedding_0", []), *((f"Layer_{n}", [(f"Attention_{n}", [])]) for n in numbers), ("Norm_9", [])])]


def test_a_class_that_recurs_in_order_in_every_pass_numbers_the_layers() -> None:
    expected = {f"{name}_{n}": {n} for n in range(5) for name in ("Layer", "Attention")}
    assert layers(model(range(5)), model(range(5))) == expected


def test_what_layers_share_is_in_all_of_them() -> None:
    tree: list[Tree] = [("Model_0", [(f"Layer_{n}", [("Rotary_0", [])]) for n in range(4)])]
    assert layers(tree)["Rotary_0"] == {0, 1, 2, 3}


def test_experts_that_begin_in_a_later_layer_have_the_layers_number_not_their_own() -> None:
    inner: list[list[Tree]] = [
        [("MLP_0", [])],
        [("MLP_1", [])],
        [("MoE_0", [])],
        [("MoE_1", [])],
        [("MoE_2", [])],
        [("MoE_3", [])],
    ]
    found = layers([("Model_0", [(f"Layer_{n}", parts) for n, parts in enumerate(inner)])])
    assert [found[f"MoE_{n}"] for n in range(4)] == [{2}, {3}, {4}, {5}]


def test_a_pass_that_is_cut_short_spoils_nothing() -> None:
    assert layers(model(range(5)), model(range(3)))["Layer_4"] == {4}


@pytest.mark.parametrize(
    "passes",
    [
        [model(range(3))],  # few
        [model([3, 4, 5, 0, 1, 2])],  # recording began within a pass
        [model(range(5)), model([0, 1, 3, 4, 2])],
        [model(range(1, 6))],  # the first is elsewhere, as that of a draft model
        [model(range(5)), model([0, 2, 3, 4])],
    ],
)
def test_numbers_that_do_not_run_from_0_in_order_are_no_layers(passes: Sequence[Sequence[Tree]]) -> None:
    assert layers(*passes) == {}


def test_layers_of_two_classes_are_not_numbered_by_either() -> None:
    hybrid: list[Tree] = [(f"{kind}_{n}", []) for n in range(6) for kind in ("Mamba", "Attention")]
    assert layers([("Model_0", hybrid)]) == {}


def test_one_first_layer_of_another_class_shifts_the_numbers() -> None:
    dense: Tree = ("DenseLayer_0", [("Attention_0", []), ("MLP_0", [])])
    sparse: list[Tree] = [(f"Layer_{n}", [(f"Attention_{n + 1}", []), (f"MoE_{n}", [])]) for n in range(5)]
    assert layers([("Model_0", [dense, *sparse])]) == {}


def test_a_norm_outside_the_layers_shifts_nothing() -> None:
    tree: list[Tree] = [("Model_0", [("Norm_0", []), *((f"Layer_{n}", [(f"Norm_{n + 1}", [])]) for n in range(4))])]
    assert layers(tree)["Layer_3"] == {3}


def test_two_stacks_under_two_parents_are_two_models() -> None:
    draft: list[Tree] = [("Draft_0", [("Layer_5", [("Attention_5", [])])])]
    found = layers(model(range(5)), draft)
    assert found["Layer_4"] == {4}
    assert "Layer_5" not in found


def test_layers_without_a_module_around_them() -> None:
    tree: list[Tree] = [(f"Layer_{n}", []) for n in range(4)]
    assert layers(tree, tree) == {f"Layer_{n}": {n} for n in range(4)}


def test_blocks_within_layers_are_in_the_layer() -> None:
    tree: list[Tree] = [
        ("Model_0", [(f"Layer_{n}", [(f"Linear_{4 * n + i}", []) for i in range(4)]) for n in range(4)])
    ]
    assert layers(tree)["Linear_6"] == {1}


def test_the_layers_of_kernels_are_those_that_launched_them() -> None:
    trace = Kineto()
    for n in range(4):
        trace.frame(f"nn.Module: Layer_{n}", 10 + 20 * n, 15)
        trace.call("cast", at=14 + 20 * n, duration=1, op="aten::copy_")
    trace.call("cast", at=100, duration=1, op="aten::copy_")
    trace.call("bare", at=120, duration=1)
    linked, _ = stepped(trace)
    assert layers_of(linked, np.arange(6)) == [0, 1, 2, 3]
    assert layers_of(linked, np.array([4, 2])) == [2]
    assert layers_of(linked, np.array([4, 5])) == []


@pytest.mark.parametrize(
    ("hierarchy", "modules"),
    [
        ("TOP(C)::forward.A0(A)::forward.", ["C", "A0(A)"]),
        ("TOP(C)::forward.A0(A)::forward.SELF(A)::forward_impl_.SELF(A)::my_new_method.", ["C", "A0(A)"]),
        ("TOP(C)::forward.SELF(C)::call_b.B0(B)::forward.", ["C", "B0(B)"]),
        ("TOP(Net)::forward.layers(Sequential)::forward.3(Block)::forward.", ["Net", "layers(Sequential)", "3(Block)"]),
        ("no hierarchy", []),
    ],
)
def test_a_recorded_hierarchy(hierarchy: str, modules: list[str]) -> None:
    assert modules_of_hierarchy(hierarchy) == modules


def test_an_encoder_and_a_decoder_are_both_layered() -> None:
    tree: list[Tree] = [
        ("Encoder_0", [(f"EncoderLayer_{n}", [(f"Attention_{n}", [])]) for n in range(4)]),
        ("Decoder_0", [(f"DecoderLayer_{n}", [(f"Attention_{4 + n}", [])]) for n in range(5)]),
    ]
    found = layers(tree)
    assert (found["EncoderLayer_3"], found["DecoderLayer_3"], found["DecoderLayer_4"]) == ({3}, {3}, {4})
    assert (found["Attention_3"], found["Attention_4"]) == ({3}, {0})


def test_a_draft_model_of_the_same_class_goes_on_counting_and_is_not_layered() -> None:
    draft: list[Tree] = [("Draft_0", [(f"Layer_{n}", []) for n in range(5, 10)])]
    assert set(layers([*model(range(5)), *draft])) == {
        f"{name}_{n}" for n in range(5) for name in ("Layer", "Attention")
    }


def test_layers_that_are_called_twice_in_a_pass_have_no_certain_number() -> None:
    tree: list[Tree] = [("Model_0", [(f"Layer_{n}", []) for n in range(4) for _ in range(2)])]
    assert layers(tree) == {}


def test_layers_within_layers_are_in_the_outer_one() -> None:
    inner: list[list[Tree]] = [[(f"Block_{4 * n + i}", [("Norm_0", [])]) for i in range(4)] for n in range(4)]
    tree: list[Tree] = [("Model_0", [(f"Layer_{n}", blocks) for n, blocks in enumerate(inner)])]
    found = layers(tree)
    assert [found[f"Block_{n}"] for n in (0, 3, 4, 15)] == [{0}, {0}, {1}, {3}]
    assert found["Norm_0"] == {0, 1, 2, 3}


def test_modules_nested_without_end_take_seconds_at_most() -> None:
    count = 100_000
    calls = Kineto()
    calls.call("any", at=1, duration=1)
    for n in range(count):
        calls.frame(f"nn.Module: Layer_{n}", 10 + n, 2.0 * (count - n))
    linked, _ = stepped(calls)
    begin = time.process_time()
    Modules.of(linked.trace)
    assert time.process_time() - begin < 5
