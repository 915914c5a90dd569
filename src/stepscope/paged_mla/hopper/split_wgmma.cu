// Split-KV MLA decode over an e4m3 pool for Hopper: 32 or 64 heads a block, wgmma with swapped operands.
//
// The same walk and the same fragments as split_mma.cu: K and V are widened e4m3 -> f16 on their way into the registers
// of wgmma's A operand (tokens for the scores, dims for the output), so that nothing is written back. The B operands,
// queries and probabilities, lie in shared memory in rows of 128 bytes a head with the 128-byte swizzle. Scores of one
// tile and output of the tile before are issued in turn: while the tensor cores work on one pair of products, the warps
// widen the operands of the next.
//
// Compiled with -DHEADS=32|64, -DSTAGES=n, -DMIN_BLOCKS=n. Needs sm_90a.

#include "common.cuh"

#define QUERY_BLOCK (HEADS * 128) // bytes of 64 query columns

// d (+)= a x b for 64 rows, HEADS columns and 16 steps of k: a warpgroup's warps hold 16 rows each.
__device__ __forceinline__ void wgmma(float (&d)[HEADS / 2], const u32 (&a)[4], u32 b, bool add) {
#if HEADS == 32
  asm volatile("{.reg .pred add; .reg .b64 rows; setp.ne.b32 add, %21, 0; mov.b64 rows, {%20, %22};\n"
               "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
               "%12, %13, %14, %15}, "
               "{%16, %17, %18, %19}, rows, add, 1, 1, 0;}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add), "n"(0x40000040));
#endif
#if HEADS == 64
  asm volatile("{.reg .pred add; .reg .b64 rows; setp.ne.b32 add, %37, 0; mov.b64 rows, {%36, %38};\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
               "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "{%32, %33, %34, %35}, rows, add, 1, 1, 0;}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add), "n"(0x40000040));
#endif
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The low word of a descriptor of K-major rows of 128 bytes with the 128-byte swizzle, eight rows every 1,024 bytes.
__device__ __forceinline__ u32 rows_at(const void *shared) {
  return (1u << 16) | ((shared_address(shared) & 0x3ffff) >> 4);
}

// The A operand of 16 dims and 16 tokens from the bytes of four tokens, 8 dims each.
__device__ __forceinline__ void value_fragment(const uint2 (&v)[4], int j, u32 (&a)[4]) {
  const u32 select = j & 1 ? 0x7362 : 0x5140;
  const u32 first = j & 2 ? __byte_perm(v[0].y, v[1].y, select) : __byte_perm(v[0].x, v[1].x, select);
  const u32 second = j & 2 ? __byte_perm(v[2].y, v[3].y, select) : __byte_perm(v[2].x, v[3].x, select);
  a[0] = widen_low(first), a[1] = widen_high(first), a[2] = widen_low(second), a[3] = widen_high(second);
}

// Heads 2 t and 2 t + 1 of eight rows of probabilities, at byte `within` of a row before the swizzle.
__device__ __forceinline__ void store_pair(u8 *rows, u32 pair, u32 within) {
  const u32 head = 2 * (threadIdx.x & 3);
  *(u16 *)(rows + head * 128 + (within ^ (head * 16))) = (u16)pair;
  *(u16 *)(rows + (head + 1) * 128 + (within ^ ((head + 1) * 16))) = (u16)(pair >> 16);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) split_wgmma(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  u8 *queries = shared + STAGES * TILE_BYTES;                 // [9][HEADS][128 bytes]: 64 columns each
  u8 *chances = queries + 9 * QUERY_BLOCK;                    // [2][HEADS][128 bytes]: 64 tokens
  float2 *swapped = (float2 *)(chances + 2 * QUERY_BLOCK);    // [WARPS][HEAD_TILES][32 lanes]
  float *tops = (float *)(swapped + WARPS * HEAD_TILES * 32); // [WARPS][HEADS]: maxima, at the end sums
  float *factors = tops + WARPS * HEADS;                      // [2][HEADS]: turns a part's score into a logit
  float *ceilings = factors + 2 * HEADS;                      // [2][HEADS]: what probabilities are taken against
  u8 *live = (u8 *)(ceilings + 2 * HEADS);                    // [STAGES][TOKENS]

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_head = blockIdx.y * HEADS;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  Loader loader;
  if (!loader.start(p, blockIdx.x))
    return;
  int request = loader.at.request, tile = loader.at.tile, end = loader.at.end; // the piece at hand
#pragma unroll
  for (int s = 0; s < STAGES - 2; s++)
    loader.load(p, shared, live, s);

  // Scores: warps w and w + 4 share 16 tokens. Part 0 takes columns [0, 256) and [512, 544), part 1 the others; then
  // they swap, and part 0 goes on with rows g, part 1 with rows g + 8.
  const int part = warp / 4, group = warp % 4;
  const u32 swizzle = g & 2; // in chunks of 16 bytes; the same for rows g and g + 8
  const u32 key_at = shared_address(shared) + (group * 16 + g) * ROW_BYTES;
  const u32 key_main = key_at + part * 256 + (t ^ swizzle) * 16;
  const u32 key_tail = key_at + LATENT + ((part * 2 + t / 2) ^ swizzle) * 16 + (t & 1) * 8;
  const int own_row = group * 16 + part * 8 + g;
  // Output: a warp takes 64 dims, a lane 8 of them, for tokens t, t + 4, t + 8, t + 12 of each 16.
  const u32 value_at = shared_address(shared) + t * ROW_BYTES + ((warp * 64 + g * 8) ^ ((t & 2) * 16));
  // Token a + 4 b of 16 is step 2 a + (b & 1) + 8 (b / 2) of k, as a lane's output fragment has it.
  const u32 chance_to = (group * 2 + part) * 16 + 2 * (2 * (g & 3) + (g >> 2));

  int stage = 0, before = 0, odd = 0, level = 0; // of the tile at hand: stage, the last tile's stage, half of
                                                 // `chances`; half of `ceilings`
  while (true) { // one request, or the worker's part of it
    const int first_tile = tile;

#pragma unroll 1
    for (int n = group; n < HEAD_TILES; n += 4) { // the four warps of a part share its heads
      Query q;
      q.load(p, request, first_head + n * 8 + g, part);
      float up;
      const float down = q.scale(p, up);
      if (t == 0)
        factors[part * HEADS + n * 8 + g] = down;
#pragma unroll
      for (int i = 0; i < 18; i++) {
        const int block = i < 16 ? part * 4 + i / 4 : 8, step = i < 16 ? i % 4 : part * 2 + i - 16;
        u8 *to = queries + block * QUERY_BLOCK + n * 1024 + g * 128 + 4 * t;
        *(u32 *)(to + ((2 * step) ^ g) * 16) = q.half(i, 0, up);
        *(u32 *)(to + ((2 * step + 1) ^ g) * 16) = q.half(i, 1, up);
      }
    }
    if (threadIdx.x < HEADS)
      ceilings[level * HEADS + threadIdx.x] = NOTHING;
    publish();

    const u32 query_rows = rows_at(queries + part * 4 * QUERY_BLOCK),
              rope_rows = rows_at(queries + 8 * QUERY_BLOCK + part * 64);
    const u32 chance_rows = rows_at(chances);
    float output[4][HEADS / 2]; // of 16 dims each: rows g and g + 8, then heads 8 n + 2 t and 8 n + 2 t + 1
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int i = 0; i < HEADS / 2; i++)
        output[j][i] = 0.0f;
    float sum[HEAD_TILES][2]; // of heads 2 t and 2 t + 1: this thread's tokens
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
      sum[n][0] = sum[n][1] = 0.0f;

    float score[HEADS / 2];
    float logit[HEAD_TILES][2]; // of row own_row, heads 2 t and 2 t + 1; against the ceiling
    u32 pair[HEAD_TILES];       // their probabilities
    bool beyond = false;        // some logit is too far above its maximum

    u32 query_now, rope_now, chance_now; // descriptors
    // Through a shuffle, which the compiler cannot move: sums of them with constants would else fill the registers.
    auto point = [&]() {
      query_now = __shfl_sync(~0u, query_rows, 0);
      rope_now = __shfl_sync(~0u, rope_rows, 0);
      chance_now = __shfl_sync(~0u, chance_rows + (odd ^ 1) * (QUERY_BLOCK / 16), 0);
    };

    // Scores of 64 columns (the last time 32) of the tile at hand, and values of 16 tokens of the tile before.
    auto multiply = [&](int i, bool values) {
      const u32 at = stage * TILE_BYTES;
      u32 above[4], below[4];
      uint2 v[4];
      if (i < 4) {
        const uint4 a = load_shared16(key_main + at + i * 64);
        const uint4 b = load_shared16(key_main + at + i * 64 + 8 * ROW_BYTES);
        above[0] = a.x, above[1] = a.y, above[2] = a.z, above[3] = a.w;
        below[0] = b.x, below[1] = b.y, below[2] = b.z, below[3] = b.w;
      } else {
        const uint2 a = load_shared8(key_tail + at), b = load_shared8(key_tail + at + 8 * ROW_BYTES);
        above[0] = a.x, above[1] = a.y, below[0] = b.x, below[1] = b.y;
      }
      if (values) {
#pragma unroll
        for (int b = 0; b < 4; b++)
          v[b] = load_shared8(value_at + before * TILE_BYTES + (i * 16 + b * 4) * ROW_BYTES);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (i == 4 && j >= 2)
          break;
        const u32 key[4] = {widen_low(above[j]), widen_low(below[j]), widen_high(above[j]), widen_high(below[j])};
        u32 value[4];
        if (values)
          value_fragment(v, j, value);
        wgmma_fence();
        wgmma(score, key, (i < 4 ? query_now + (i * QUERY_BLOCK + j * 32) / 16 : rope_now + j * 2), i > 0 || j > 0);
        if (values)
          wgmma(output[j], value, chance_now + i * 2, true);
        wgmma_commit();
        wgmma_wait<1>(); // the operands of the products before are free
      }
    };

    // All loads come before the stores that the compiler must take for their aliases.
    auto find_chances = [&]() {
      float2 factor[HEAD_TILES], other[HEAD_TILES], ceiling[HEAD_TILES];
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        factor[n] = *(const float2 *)(factors + part * HEADS + n * 8 + 2 * t);
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float2 upper = make_float2(score[4 * n] * factor[n].x, score[4 * n + 1] * factor[n].y);
        const float2 lower = make_float2(score[4 * n + 2] * factor[n].x, score[4 * n + 3] * factor[n].y);
        logit[n][0] = part ? lower.x : upper.x, logit[n][1] = part ? lower.y : upper.y;
        swapped[((warp ^ 4) * HEAD_TILES + n) * 32 + lane] = part ? upper : lower;
      }
      const bool alive = live[stage * TOKENS + own_row];
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        ceiling[n] = *(const float2 *)(ceilings + level * HEADS + n * 8 + 2 * t);
      asm volatile("bar.sync %0, 64;" ::"r"(group + 1) : "memory"); // the two warps of these 16 tokens
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        other[n] = swapped[(warp * HEAD_TILES + n) * 32 + lane];
      beyond = false;
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float top[2] = {ceiling[n].x, ceiling[n].y};
        logit[n][0] = alive ? logit[n][0] + other[n].x : NOTHING;
        logit[n][1] = alive ? logit[n][1] + other[n].y : NOTHING;
        beyond |= logit[n][0] > top[0] + HEADROOM || logit[n][1] > top[1] + HEADROOM;
        pair[n] = chance_of(logit[n], top);
      }
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        store_pair(chances + odd * QUERY_BLOCK + n * 1024, pair[n], chance_to);
      publish();
    };

    // Call it at a barrier after find_chances: raises maxima where that is needed, and counts the probabilities.
    auto settle_chances = [&](bool raise) {
      if (raise) {
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float best = logit[n][i];
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
              best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
            if (g == 0)
              tops[warp * HEADS + n * 8 + 2 * t + i] = best;
          }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
          float top[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int head = n * 8 + 2 * t + i;
            const float last = ceilings[level * HEADS + head];
            top[i] = last;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
              top[i] = fmaxf(top[i], tops[w * HEADS + head]);
            if (warp == 0 && g == 0)
              ceilings[(level ^ 1) * HEADS + head] = top[i];
            const float alpha = power2(last - (top[i] == NOTHING ? 0.0f : top[i]));
            sum[n][i] *= alpha;
#pragma unroll
            for (int j = 0; j < 4; j++)
              output[j][4 * n + i] *= alpha, output[j][4 * n + i + 2] *= alpha;
          }
          pair[n] = chance_of(logit[n], top);
          store_pair(chances + (odd ^ 1) * QUERY_BLOCK + n * 1024, pair[n], chance_to);
        }
        level ^= 1;
        publish();
        __syncthreads(); // probabilities are complete
      }
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float2 both = unpack_half(pair[n]); // as rounded, so that the weights sum to one
        sum[n][0] += both.x, sum[n][1] += both.y;
      }
    };

    auto fresh = [&]() { return stage >= 2 ? stage - 2 : stage + STAGES - 2; }; // the stage to load into

    auto step = [&]() {
      before = stage;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      odd ^= 1;
    };

    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
    __syncthreads(); // the tile is there for all, and the queries are
    loader.load(p, shared, live, fresh());
    point();
#pragma unroll
    for (int i = 0; i < 5; i++)
      multiply(i, false);
    wgmma_wait<0>();
    find_chances();
    step();
    while (true) {
      const bool more = ++tile < end;
      if (more)
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
      const bool raise = __syncthreads_or(beyond); // the next tile and the last one's probabilities are there for all
      settle_chances(raise);
      if (!more)
        break;
      loader.load(p, shared, live, fresh()); // into the stage of the last tile but one
      point();
#pragma unroll
      for (int i = 0; i < 5; i++)
        multiply(i, i < 4);
      wgmma_wait<0>();
      find_chances();
      step();
    }
    point();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint2 v[4];
#pragma unroll
      for (int b = 0; b < 4; b++)
        v[b] = load_shared8(value_at + before * TILE_BYTES + (k * 16 + b * 4) * ROW_BYTES);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 value[4];
        value_fragment(v, j, value);
        wgmma_fence();
        wgmma(output[j], value, chance_now + k * 2, true);
        wgmma_commit();
        wgmma_wait<1>();
      }
    }
    wgmma_wait<0>();

#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          sum[n][i] += __shfl_xor_sync(~0u, sum[n][i], step);
        if (g == 0)
          tops[warp * HEADS + n * 8 + 2 * t + i] = sum[n][i];
      }
    __syncthreads();
    const Target target = {first_tile == 0 && end == tiles_of(p.lengths[request]), request,
                           2 * (i64)blockIdx.x + (first_tile == 0 ? 1 : 0)};
    if (threadIdx.x < HEADS) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; w++)
        total += tops[w * HEADS + threadIdx.x];
      const bool some = total > 0.0f || total != total; // NaN goes through
      factors[threadIdx.x] = some ? p.value_scale / total : 0.0f;
      if (first_head + threadIdx.x < p.heads)
        target.store_lse(p, first_head + threadIdx.x,
                         some ? ceilings[level * HEADS + threadIdx.x] + log2_of(total) - P_SHIFT : NOTHING);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int local = n * 8 + 2 * t + i, head = first_head + local;
        if (head >= p.heads)
          continue;
        const float by = factors[local];
        float v[8]; // dims 64 warp + 8 g + 0..7
#pragma unroll
        for (int j = 0; j < 4; j++)
          v[2 * j] = output[j][4 * n + i] * by, v[2 * j + 1] = output[j][4 * n + i + 2] * by;
        target.store(p, head, warp * 64 + g * 8, v);
      }
    __syncthreads(); // the sums are read before the next request writes there

    Cursor after = {request, end, end, 0, 0};
    settle(after, p, loader.last_request, loader.last_tile);
    request = after.request, tile = after.tile, end = after.end;
    if (tile >= end)
      return;
  }
}
