"""Kernels' names for people: short, the same every time, told apart, and cheap whatever a trace holds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.kernel_name import WIDTH, short_name, short_names, without_arguments
from tests import kernel_names

_DIRECT = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(long)#1}"
)
_MUL = "at::native::binary_internal::MulFunctor<float>"
_MAINLOOP = "cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, cute::tuple<cute::C<1>, cute::C<2> > >"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("nvjet_tst_128x8_64x12_2x1_v_bz_TNT", "nvjet_tst_128x8_64x12_2x1_v_bz_TNT"),
        ("triton_poi_fused__to_copy_1", "triton_poi_fused__to_copy_1"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (kernel_names.NORM, "flashinfer::RMSNormKernel<8, __nv_bfloat16>"),
        (kernel_names.TO_BF16, "unrolled_elementwise<direct_copy_kernel_cuda(BFloat16), …>"),
        (kernel_names.FP8_WRITE, "vectorized_elementwise<4, float8_copy_kernel_cuda(BFloat16)>"),
        (kernel_names.ADD, "vectorized_elementwise<4, CUDAFunctor_add<BFloat16>>"),
        (
            (
                f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{_DIRECT}>"
                f"(at::TensorIteratorBase&, {_DIRECT} const&)::{{lambda(int)#1}}>(int, int)"
            ),
            "elementwise<128, 2, direct_copy_kernel_cuda(long)>",
        ),
        (
            (
                "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16,"
                " c10::BFloat16,"
                f" c10::BFloat16, {_MUL} >, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)"
            ),
            "vectorized_elementwise<8, MulFunctor(BFloat16)>",
        ),
        (
            (
                "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float,"
                " at::native::ArgMaxOps<float>, unsigned"
                " int, long, 4, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int,"
                " long, 4, 4>)"
            ),
            "reduce_kernel<512, 1, ArgMaxOps(float)>",
        ),
        (
            (
                "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous"
                " namespace)::ActivationKind)0,"
                " true>((anonymous namespace)::ActivationParams)"
            ),
            "act_and_mul_kernel<__nv_bfloat16, 0, true>",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, true>(std::enable_if<true, P>)",
            "internal::kernel<int, float, true>",
        ),
        (
            (
                "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>,"
                f" cutlass::gemm::collective::CollectiveMma<{_MAINLOOP}, cutlass::float_e4m3_t> > >(Params)"
            ),
            "cutlass::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized>",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEEvPT0_PT_", "aiter::add_rmsnorm_quant_kernel"),
        ("_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_4PipeEEEJEEEvT_", "ck_tile::FmhaFwdKernel"),
        ("_ZN12_GLOBAL__N_15thing6kernelEv", "thing::kernel"),
        ("_Z6kernelPf", "kernel"),
        ("_Znot_mangled", "_Znot_mangled"),
        ("", ""),
    ],
)
def test_a_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


def test_arguments_of_the_function_are_dropped_and_those_of_templates_kept() -> None:
    assert without_arguments("void a::k<f(int)::{lambda(int)#1}>(int, long)") == "void a::k<f(int)::{lambda(int)#1}>"
    assert without_arguments("(anonymous namespace)::k") == "(anonymous namespace)::k"
    assert without_arguments("Memcpy DtoH (Device -> Pinned)") == "Memcpy DtoH (Device -> Pinned)"


def test_kernels_of_one_report_that_would_be_called_the_same_get_a_mark() -> None:
    a, b, other = "void ns::k<int>(int)", "void ns::k<int>(long)", "void ns::k<long>(long)"
    named = short_names([a, b, other, a])
    assert named[other] == "ns::k<long>"
    assert named[a] != named[b]
    assert named[a].startswith("ns::k<int> ~")
    assert named == {name: short_names([other, b, a])[name] for name in (a, b, other)}  # whatever the order


def test_marks_are_as_long_as_it_takes_to_tell_kernels_apart() -> None:
    many = [f"void ns::k<int>({'*' * number}int)" for number in range(1000)]  # 4 digits of some marks are equal
    named = short_names(many)
    assert len(set(named.values())) == len(many)
    taken = short_names(["void ns::k<int>(int)", "void ns::k<int>(long)"])
    also = short_names([*taken, next(iter(taken.values()))])  # a kernel that is called as another is marked
    assert len(set(also.values())) == len(also) == 3


CPP = st.text(st.sampled_from("ab1<>(),:{}[]& ~*#_ZN\x1b…"), max_size=200)


@given(CPP, st.integers(1, 80))
def test_no_name_is_longer_than_it_may_be_and_each_has_one_form(name: str, width: int) -> None:
    short = short_name(name, width)
    assert len(short) <= width
    assert short == short_name(name, width)
    assert bool(short) == bool(name)


@pytest.mark.parametrize(
    "part",
    ["<", "<,", "a<", "a<1,", "(", "{lambda(", "{lambda()#", "::", ">", "_ZN1a", "1a", "x<ab,cd,", "ReduceOp<"],
)
def test_a_name_of_a_megabyte_costs_no_more_than_its_head(part: str) -> None:
    for name in (part * (1_000_000 // len(part)), "_ZN" + part * (1_000_000 // len(part))):
        begin = time.perf_counter()
        assert len(short_name(name)) <= WIDTH
        assert time.perf_counter() - begin < 0.5
