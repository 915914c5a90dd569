// Split-KV MLA decode over an e4m3 pool for Hopper: up to 16 heads a block, mma.sync with swapped operands.
//
// One block walks a contiguous run of tiles that the plan gave it, over one or several requests:
//   scores  S^T[token, head]  = K[token, 576]  x Q^T[576, head]     (tokens are the MMA's M, heads its N)
//   output  O^T[dim,   head] += V^T[dim, token] x P^T[token, head]  (dims are M, heads N)
// so 8 heads fill an MMA that would be half empty with heads as M. K and V are the same bytes in shared memory:
// each is widened e4m3 -> f16 on its way into the MMA's A registers, with nothing written back.
// Both products may permute their K index as long as the two operands agree, and use it to read 16 (scores)
// or 8 (output) consecutive bytes a lane.
//
// Probabilities are taken against a maximum that is only raised when a logit passes it by more than 2^HEADROOM, which
// fp16 has room for: the usual tile needs no reduction, and one barrier.
//
// Compiled with -DHEADS=8|16, -DSTAGES=n, -DMIN_BLOCKS=n.

#include "common.cuh"

#define CHAINS 2         // independent score accumulators a head tile, to hide the MMA's latency
#define CHANCE_BYTES 160 // a head's probabilities; 32 mod 128 spreads the heads over the banks

__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void store_pair(u8 *to, u32 pair) {
  *(u16 *)to = (u16)pair;
  *(u16 *)(to + CHANCE_BYTES) = (u16)(pair >> 16);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) split_mma(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 shared[];
  float2 *swapped = (float2 *)(shared + STAGES * TILE_BYTES);  // [WARPS][HEAD_TILES][32 lanes]
  u8 *chances = (u8 *)(swapped + WARPS * HEAD_TILES * 32);     // [2][HEADS][CHANCE_BYTES]
  float *tops = (float *)(chances + 2 * HEADS * CHANCE_BYTES); // [WARPS][HEADS]: maxima, at the end sums
  u8 *live = (u8 *)(tops + WARPS * HEADS);                     // [STAGES][TOKENS]

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
  // A lane's tokens of an output fragment stand side by side among the probabilities: token a + 4 b of 16 at 4 a + b.
  u8 *const chance_to = chances + 2 * (group * 16 + 4 * (g & 3) + (g >> 2) + 2 * part) + 2 * t * CHANCE_BYTES;

  int stage = 0, before = 0, odd = 0; // of the tile at hand: stage, the last tile's stage, half of `chances`
  while (true) {                      // one request, or the worker's part of it
    const int first_tile = tile;

    uint2 query[18][HEAD_TILES];
    float factor[HEAD_TILES][2]; // of heads 2 t and 2 t + 1: turns an accumulator into a base-2 logit
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) {
      Query q;
      q.load(p, request, first_head + n * 8 + g, part);
      float up;
      const float down = q.scale(p, up);
#pragma unroll
      for (int i = 0; i < 18; i++)
        query[i][n] = make_uint2(q.half(i, 0, up), q.half(i, 1, up));
      factor[n][0] = __shfl_sync(~0u, down, 8 * t);
      factor[n][1] = __shfl_sync(~0u, down, 8 * t + 4);
    }

    float output[4][HEAD_TILES][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          output[j][n][i] = 0.0f;
    float top[HEAD_TILES][2], sum[HEAD_TILES][2]; // of heads 2 t and 2 t + 1; the sum of this thread's tokens
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
      top[n][0] = top[n][1] = NOTHING, sum[n][0] = sum[n][1] = 0.0f;

    float score[CHAINS][HEAD_TILES][4];
    float logit[HEAD_TILES][2]; // of row own_row, heads 2 t and 2 t + 1; against `top`
    u32 pair[HEAD_TILES];       // their probabilities
    bool beyond = false;        // some logit is too far above its maximum

    auto score_group = [&](int i) { // 64 columns; the last time 32
      const u32 at = stage * TILE_BYTES;
      if (i == 0) {
#pragma unroll
        for (int c = 0; c < CHAINS; c++)
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              score[c][n][e] = 0.0f;
      }
      u32 above[4], below[4];
      if (i < 4) {
        const uint4 a = load_shared16(key_main + at + i * 64);
        const uint4 b = load_shared16(key_main + at + i * 64 + 8 * ROW_BYTES);
        above[0] = a.x, above[1] = a.y, above[2] = a.z, above[3] = a.w;
        below[0] = b.x, below[1] = b.y, below[2] = b.z, below[3] = b.w;
      } else {
        const uint2 a = load_shared8(key_tail + at), b = load_shared8(key_tail + at + 8 * ROW_BYTES);
        above[0] = a.x, above[1] = a.y, below[0] = b.x, below[1] = b.y;
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (i == 4 && j >= 2)
          break;
        const u32 a0 = widen_low(above[j]), a1 = widen_low(below[j]);
        const u32 a2 = widen_high(above[j]), a3 = widen_high(below[j]);
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
          const uint2 b = query[4 * i + j][n];
          mma(score[j % CHAINS][n], a0, a1, a2, a3, b.x, b.y);
        }
      }
    };

    auto find_chances = [&]() {
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (CHAINS == 2)
            score[0][n][i] += score[CHAINS - 1][n][i];
          score[0][n][i] *= factor[n][i & 1];
        }
        logit[n][0] = part ? score[0][n][2] : score[0][n][0];
        logit[n][1] = part ? score[0][n][3] : score[0][n][1];
        swapped[((warp ^ 4) * HEAD_TILES + n) * 32 + lane] =
            part ? make_float2(score[0][n][0], score[0][n][1]) : make_float2(score[0][n][2], score[0][n][3]);
      }
      asm volatile("bar.sync %0, 64;" ::"r"(group + 1) : "memory"); // the two warps of these 16 tokens
      const bool alive = live[stage * TOKENS + own_row];
      beyond = false;
      float2 other[HEAD_TILES]; // loaded before the stores that the compiler must take for its aliases
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        other[n] = swapped[(warp * HEAD_TILES + n) * 32 + lane];
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        logit[n][0] = alive ? logit[n][0] + other[n].x : NOTHING;
        logit[n][1] = alive ? logit[n][1] + other[n].y : NOTHING;
        beyond |= logit[n][0] > top[n][0] + HEADROOM || logit[n][1] > top[n][1] + HEADROOM;
        pair[n] = chance_of(logit[n], top[n]);
        store_pair(chance_to + odd * HEADS * CHANCE_BYTES + n * 8 * CHANCE_BYTES, pair[n]);
      }
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
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float best = top[n][i];
#pragma unroll
            for (int w = 0; w < WARPS; w++)
              best = fmaxf(best, tops[w * HEADS + n * 8 + 2 * t + i]);
            const float alpha = power2(top[n][i] - (best == NOTHING ? 0.0f : best));
            top[n][i] = best;
            sum[n][i] *= alpha;
#pragma unroll
            for (int j = 0; j < 4; j++)
              output[j][n][i] *= alpha, output[j][n][i + 2] *= alpha;
          }
          pair[n] = chance_of(logit[n], top[n]);
          store_pair(chance_to + (odd ^ 1) * HEADS * CHANCE_BYTES + n * 8 * CHANCE_BYTES, pair[n]);
        }
        __syncthreads(); // probabilities are complete
      }
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float2 both = unpack_half(pair[n]); // as rounded, so that the weights sum to one
        sum[n][0] += both.x, sum[n][1] += both.y;
      }
    };

    auto add_group = [&](int k) { // 16 tokens of the tile before, whose probabilities are complete
      uint2 chance[HEAD_TILES];
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
        chance[n] =
            *(const uint2 *)(chances + (odd ^ 1) * HEADS * CHANCE_BYTES + (n * 8 + g) * CHANCE_BYTES + k * 32 + t * 8);
      const u32 from = value_at + before * TILE_BYTES + k * 16 * ROW_BYTES;
      const uint2 v0 = load_shared8(from), v1 = load_shared8(from + 4 * ROW_BYTES);
      const uint2 v2 = load_shared8(from + 8 * ROW_BYTES), v3 = load_shared8(from + 12 * ROW_BYTES);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u32 select = j & 1 ? 0x7362 : 0x5140;
        const u32 first = j & 2 ? __byte_perm(v0.y, v1.y, select) : __byte_perm(v0.x, v1.x, select);
        const u32 second = j & 2 ? __byte_perm(v2.y, v3.y, select) : __byte_perm(v2.x, v3.x, select);
        const u32 a0 = widen_low(first), a1 = widen_high(first), a2 = widen_low(second), a3 = widen_high(second);
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++)
          mma(output[j][n], a0, a1, a2, a3, chance[n].x, chance[n].y);
      }
    };

    auto fresh = [&]() { return stage >= 2 ? stage - 2 : stage + STAGES - 2; }; // the stage to load into

    auto step = [&]() {
      before = stage;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      odd ^= 1;
    };

    // A tile's values are added while the next tile is scored: the two have nothing to wait for in each other.
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
    __syncthreads(); // the tile is there for all, and the queries are
    loader.load(p, shared, live, fresh());
#pragma unroll
    for (int i = 0; i < 5; i++)
      score_group(i);
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
#pragma unroll
      for (int i = 0; i < 5; i++) {
        score_group(i);
        if (i < 4)
          add_group(i);
      }
      find_chances();
      step();
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      add_group(k);

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
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int local = n * 8 + 2 * t + i, head = first_head + local;
        if (head >= p.heads)
          continue;
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
          total += tops[w * HEADS + local];
        const bool some = total > 0.0f || total != total; // NaN goes through
        const float by = some ? p.value_scale / total : 0.0f;
        float v[8]; // dims 64 warp + 8 g + 0..7
#pragma unroll
        for (int j = 0; j < 4; j++)
          v[2 * j] = output[j][n][i] * by, v[2 * j + 1] = output[j][n][i + 2] * by;
        target.store(p, head, warp * 64 + g * 8, v);
        if (warp == 0 && g == 0)
          target.store_lse(p, head, some ? top[n][i] + log2_of(total) - P_SHIFT : NOTHING);
      }
    __syncthreads(); // the sums are read before the next request writes there

    Cursor after = {request, end, end, 0, 0};
    settle(after, p, loader.last_request, loader.last_tile);
    request = after.request, tile = after.tile, end = after.end;
    if (tile >= end)
      return;
  }
}
