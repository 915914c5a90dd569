"""The examples of every rule as cases: what it must find, and look-alikes on which it must not speak.

What else is true of an example is told here: another rule's cause that it was built with, or what its pace brings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stepscope.pipeline.detect.registry import all_rules
from tests.catalogue.case import Case, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from tests.catalogue.case import Built

    Build = Callable[[], Built]
    Reasons = Mapping[str, str]

ONE_BY_ONE = {"launch-bound": "its kernels are shorter than what the host takes to launch them"}
ONCE_GONE = {"launch-bound": "without the casts its kernels are shorter than what the host takes to launch them"}
PREPARES = {"host-gap": "the host works between two steps of the same requests, and the GPU waits"}
REBUILT = {"weight-rematerialised": "a tensor of a weight's shape is copied before each multiplication"}
STRIDED = {"layout-copy": "copies in every layer change the layout of activations"}
ALLOCATES = {"jit-or-allocator-in-step": "memory is freed in every step, and the GPU waits"}

MUST_TOO: dict[str, dict[str, str]] = {
    "hidden-sync: token_read_once_a_step": PREPARES,
    "hidden-sync: wait_for_the_step_without_a_copy": PREPARES,
    "hidden-sync: waits_of_a_gpu_that_had_nothing_to_do": PREPARES,
    "host-gap: allocations_between_steps": ALLOCATES,
    "launch-bound: few_long_gaps_while_the_host_prepares_the_next_batch": PREPARES,
    "launch-bound: graphs_with_a_slow_host_between_them": PREPARES,
    "launch-bound: host_that_shows_once_the_pools_cast_is_gone": {"kv-pool-cast": "the pool is cast in every layer"},
    "layout-copy: a_weight_transposed": REBUILT,
    "redundant-cast: casts_of_the_pool": {"kv-pool-cast": "the pool is cast in every layer"},
    "redundant-cast: copies_that_are_no_casts": REBUILT,
    "redundant-cast: weight_cast_right_before_its_gemm": REBUILT,
    "slow-collective: ranks_that_wait_for_a_late_one": {"rank-skew": "one rank comes 60 µs later to every call"},
    "unfused-elementwise: weights_and_cache_that_are_dequantised": {
        "weight-rematerialised": "weights are dequantised before their multiplication"
    },
    "weight-rematerialised: activations_of_a_weights_shape": STRIDED,
    "weight-rematerialised: keys_laid_out_for_their_product": STRIDED,
    "weight-rematerialised: large_casts_that_no_gemm_follows": {
        "redundant-cast": "as large a tensor as a weight is cast in every layer for a single token"
    },
}
"""Causes of other rules that an example was built with."""
TRUE_TOO: dict[str, dict[str, str]] = {
    "fill-in-step: counters_that_a_gemm_clears": ONE_BY_ONE,
    "fill-in-step: counters_that_a_gemm_clears_on_rocm": ONE_BY_ONE,
    "fill-in-step: memsets_of_nobody": ONE_BY_ONE,
    "fill-in-step: outputs_allocated_as_zeros": ONE_BY_ONE,
    "fill-in-step: outputs_cleared_by_memsets": ONE_BY_ONE,
    "kv-pool-cast: idle_batch_that_casts_as_much": ONCE_GONE,
    "kv-pool-cast: paged_pool": ONCE_GONE,
    "kv-pool-cast: pool_cast_during_prefill": ONCE_GONE,
    "kv-pool-cast: whole_pool_cast_in_every_layer": ONCE_GONE,
    "layout-copy: casts_and_dense_copies": ONE_BY_ONE,
    "layout-copy: copies_around_every_product": ONE_BY_ONE,
    "redundant-cast: small_casts": ONE_BY_ONE,
    "unfused-elementwise: norms_written_out": ONE_BY_ONE,
    "unfused-elementwise: training": ONE_BY_ONE,
    "weight-rematerialised: small_weights_copied": ONE_BY_ONE,
}


def cases() -> Iterator[Case]:
    """Yield a case for each example; published ones, that rules share, are not among them."""
    for rule in all_rules():
        module = import_module(f"tests.examples.{rule.id.replace('-', '_')}")
        for build in module.FIRING:
            yield _case(rule.id, build, {rule.id: "its cause is built in"})
        yield from (_case(rule.id, build, {}) for build in module.QUIET if _is_of(module, build))


def _is_of(module: ModuleType, build: Build) -> bool:
    return build.__module__ == module.__name__


def _case(rule: str, build: Build, must: Reasons) -> Case:
    name = f"{rule}: {build.__name__}"
    return Case(
        name=name,
        origin=Origin.BUILT,
        traces=build,
        must={**must, **MUST_TOO.get(name, {})},
        true_too=TRUE_TOO.get(name, {}),
        model="glm-5",
        tp=8,
    )
