// Combines the parts of each request: out = sum_i 2^(lse_i) out_i / sum_i 2^(lse_i), in a fixed order.
//
// A block owns one (request, head) and `lanes` x 4 dims; `groups` of lanes take every groups-th part and meet in
// shared memory. Requests that one worker finished are left alone; requests without tokens get zeros and -inf.
// Compiled with -DBATCH=n: parts whose loads are in flight at once. Launched programmatically: it may start while
// split_mma still runs, and waits for it before reading parts.

typedef unsigned short u16;
typedef long long i64;

#define LATENT 512
#define MAX_GROUPS 16

struct MergeParams {
  const float *part_out, *part_lse;
  const int *spans; // first and last worker a request
  void *out;
  float *lse;
  i64 out_batch, out_head, lse_batch;
  int heads, lanes, groups, out_float;
};

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 2^(x - base), where base = -inf stands for "nothing yet".
__device__ __forceinline__ float weight(float x, float base) {
  const float nothing = __uint_as_float(0xff800000u);
  return power2(x - (base == nothing ? 0.0f : base));
}

extern "C" __global__ void __launch_bounds__(512) merge(const __grid_constant__ MergeParams p) {
  extern __shared__ float4 sums[]; // [groups][lanes] where groups > 1
  __shared__ float tops[MAX_GROUPS], weights[MAX_GROUPS];
  const float nothing = __uint_as_float(0xff800000u);
  const int request = blockIdx.x, head = blockIdx.y;
  const int lane = threadIdx.x % p.lanes, group = threadIdx.x / p.lanes;
  const int dim = (blockIdx.z * p.lanes + lane) * 4;
  const int first = p.spans[2 * request], count = p.spans[2 * request + 1] - first + 1;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (count == 1)
    return;

  float top = nothing, total = 0.0f;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int i0 = group; i0 < count; i0 += p.groups * BATCH) {
    float lse[BATCH];
    float4 part[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const int i = i0 + k * p.groups;
      lse[k] = nothing;
      part[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (i < count) {
        const i64 at = (i64)(i == 0 ? 2 * first + 1 : 2 * (first + i)) * p.heads + head;
        lse[k] = p.part_lse[at];
        part[k] = *(const float4 *)(p.part_out + at * LATENT + dim);
      }
    }
    float next = top;
#pragma unroll
    for (int k = 0; k < BATCH; k++)
      next = lse[k] != lse[k] ? lse[k] : fmaxf(next, lse[k]);
    const float keep = weight(top, next);
    top = next, total *= keep;
    sum.x *= keep, sum.y *= keep, sum.z *= keep, sum.w *= keep;
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      const float w = weight(lse[k], top);
      total += w;
      sum.x += w * part[k].x, sum.y += w * part[k].y, sum.z += w * part[k].z, sum.w += w * part[k].w;
    }
  }
  if (p.groups > 1) {
    sums[group * p.lanes + lane] = sum;
    if (lane == 0)
      tops[group] = top, weights[group] = total;
    __syncthreads();
    if (group != 0)
      return;
    for (int i = 1; i < p.groups; i++)
      top = fmaxf(top, tops[i]);
    total = 0.0f, sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = 0; i < p.groups; i++) {
      const float w = weight(tops[i], top);
      const float4 v = sums[i * p.lanes + lane];
      total += w * weights[i];
      sum.x += w * v.x, sum.y += w * v.y, sum.z += w * v.z, sum.w += w * v.w;
    }
  }
  const float by = total > 0.0f || total != total ? 1.0f / total : 0.0f;
  const i64 to = request * p.out_batch + head * p.out_head + dim;
  if (p.out_float)
    *(float4 *)((float *)p.out + to) = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
  else
    *(uint2 *)((u16 *)p.out + to) = make_uint2(pack_bf16(sum.x * by, sum.y * by), pack_bf16(sum.z * by, sum.w * by));
  if (p.lse != nullptr && dim == 0) {
    float log2_total;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2_total) : "f"(total));
    p.lse[request * p.lse_batch + head] =
        total > 0.0f || total != total ? (top + log2_total) * 0.6931471805599453f : nothing;
  }
}
