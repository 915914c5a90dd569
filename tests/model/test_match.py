"""Which weight a shape is; the expected names are read off GLM-5's config by hand."""

from __future__ import annotations

import pytest

from stepscope.model import Component, How, Parallel, find_format, load_model, match_elements, match_shape, rank_weights

GLM_5 = rank_weights(load_model("glm-5"), Parallel(8))


@pytest.mark.parametrize(
    ("shape", "name", "how"),
    [
        ([256, 512, 6144], "w13", How.EXACT),
        ([1, 256, 6144, 256], "w2", How.EXACT),
        ([8, 192, 512], "w_kc", How.EXACT),
        ([6144, 2048], "o_proj", How.EXACT),  # the transpose of q_a_proj, which is the weaker explanation
        ([2048, 6144], "q_a_proj", How.EXACT),
        ([256, 6144, 512], "w13", How.TRANSPOSED),
        ([8, 512, 192], "w_kc", How.TRANSPOSED),
        ([512, 256, 6144], "w13", How.PERMUTED),
        ([256 * 512, 6144], "w13", How.FLATTENED),
        ([256 * 512 * 6144], "w13", How.FLATTENED),
        ([256, 6144 * 256], "w2", How.FLATTENED),
        ([19456, 6144], "lm_head", How.PADDED),  # 19,360 rows rounded up to 128
        ([32, 512, 6144], "w13", How.SLICED),  # an eighth of the experts
    ],
)
def test_the_strongest_explanation_names_the_weight(shape: list[int], name: str, how: How) -> None:
    assert (name, how) in [(match.weight.name, match.how) for match in match_shape(GLM_5, shape)]


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [1],
        [0, 6144],  # empty
        [495_552, 1, 576],  # the KV pool
        [1, 1024, 7168],  # another model's width
        [100, 512, 6144],  # no divisor of 256 experts
    ],
)
def test_nothing_is_forced_to_fit(shape: list[int]) -> None:
    assert match_shape(GLM_5, shape) == []


def test_a_tie_is_said() -> None:
    """The embedding and the LM head of a rank have the same shape."""
    assert {match.weight.name for match in match_shape(GLM_5, [19360, 6144])} == {"embedding", "lm_head"}


def test_weak_explanations_can_be_left_out() -> None:
    assert match_shape(GLM_5, [32, 512, 6144], least=How.FLATTENED) == []


def test_a_packed_weight_is_known_by_what_is_stored() -> None:
    """NVFP4 holds two values a byte and a scale for 16."""
    packed = rank_weights(load_model("glm-5"), Parallel(8), {Component.EXPERTS: find_format("nvfp4")})
    assert [match.weight.name for match in match_shape(packed, [256, 512, 3072])] == ["w13"]
    assert [match.weight.name for match in match_shape(packed, [256, 512, 384])] == ["w13"]


def test_elements_name_every_weight_within_a_range() -> None:
    assert [weight.name for weight in match_elements(GLM_5, 805_306_368 - 511, 805_306_368)] == ["w13"]
    assert {weight.name for weight in match_elements(GLM_5, 19360 * 6144, 19360 * 6144)} == {"embedding", "lm_head"}


def test_a_row_of_activations_is_no_norm() -> None:
    """GLM-5's norms have 6144 elements, as a token's hidden state has; its router's bias has one an expert."""
    assert {weight.name for weight in GLM_5 if weight.elements == 6144} >= {"input_norm", "final_norm"}
    assert match_shape(GLM_5, [1, 6144]) == []
    assert match_elements(GLM_5, 6144, 6144) == []
    assert match_elements(GLM_5, 256, 256) == []
