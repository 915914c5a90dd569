// Split-KV MLA decode over an e4m3 pool for Hopper: 32 or 64 heads a block, wgmma with swapped operands.
//
// The same fragments as split_mma.cu: K and V are widened e4m3 -> f16 on their way into the registers of wgmma's A
// operand (tokens for the scores, dims for the output), so that nothing is written back. The B operands, queries and
// probabilities, lie in shared memory in rows of 128 bytes a head with the 128-byte swizzle.
//
// Two warpgroups take turns: each scores every other tile by itself, and adds the values of all tiles to its half of
// the dims. While one takes exponentials, the other multiplies. A third warpgroup loads. Tiles go through a ring of
// quarters, 16 tokens each.
//
// Probabilities are taken against a shift that follows the order of tiles: a tile's owner lowers it where fp16 needs
// that, and whoever adds the tile's values first scales what it has.
//
// Compiled with -DHEADS=32|64, -DSTAGES=n (quarters), -DMIN_BLOCKS=1. Needs sm_90a.

#include "common.cuh"

#define QUERY_BLOCK (HEADS * 128) // bytes of 64 query columns
#define QUARTER 16                // tokens
#define QUARTER_BYTES (QUARTER * ROW_BYTES)
#define CONSUMERS 256
#define LOADERS 128
#define TILE_BARRIERS 8                    // more than the ring has tiles
#define NEVER __uint_as_float(0x7f800000u) // the shift before any logit

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

__device__ __forceinline__ void init_barrier(u32 at, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void arrive_with_copies(u32 at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void wait_for(u32 at, u32 parity) {
  u32 done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
  } while (!done);
}
__device__ __forceinline__ void meet(int name) { asm volatile("bar.sync %0, 128;" ::"r"(name) : "memory"); }
__device__ __forceinline__ bool any_of_group(int name, bool mine) {
  u32 any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, 128, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(any)
               : "r"((u32)mine), "r"(name)
               : "memory");
  return any;
}

// A tile in the ring: its number in the worker's order and the quarter that it starts at.
struct Place {
  u32 number, quarter;
  __device__ __forceinline__ u32 quarter_of(u32 i) const {
    return quarter + i < STAGES ? quarter + i : quarter + i - STAGES;
  }
  __device__ __forceinline__ Place plus(u32 tiles) const { return {number + tiles, quarter_of(4 * tiles)}; }
  // A barrier a tile, used again eight tiles later.
  __device__ __forceinline__ u32 barrier() const { return number % TILE_BARRIERS * 8; }
  __device__ __forceinline__ u32 parity() const { return number / TILE_BARRIERS & 1; }
};

#define OWN_BAR 1 // the name of a side's barrier; the other's follows

extern "C" __global__ void __launch_bounds__(CONSUMERS + LOADERS, 1) split_wgmma(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  u8 *queries = shared;                                                      // [9][HEADS][128 bytes]: 64 columns each
  u8 *chances = queries + 9 * QUERY_BLOCK;                                   // [2][HEADS][128 bytes]: 64 tokens
  u8 *ring = chances + 2 * QUERY_BLOCK;                                      // [STAGES][QUARTER][ROW_BYTES]
  float *tops = (float *)(ring + STAGES * QUARTER_BYTES);                    // [WARPS][HEADS]: maxima, at the end sums
  float *factors = tops + WARPS * HEADS;                                     // [HEADS]: turns a score into a logit
  float *shifts = factors + HEADS;                                           // [4][HEADS]: what is added to logits
  unsigned long long *barriers = (unsigned long long *)(shifts + 4 * HEADS); // full, empty, ready, all
  u32 *raised = (u32 *)(barriers + 2 * TILE_BARRIERS + 3); // [2]: whether a group's last tile changed the shifts
  u8 *live = (u8 *)(raised + 2);                           // [STAGES][QUARTER]

  const int first_head = blockIdx.y * HEADS;
  const u32 full = shared_address(barriers), empty = full + TILE_BARRIERS * 8, ready = empty + TILE_BARRIERS * 8,
            all = ready + 16;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  const int4 first = ((const int4 *)p.starts)[blockIdx.x], last = ((const int4 *)p.starts)[blockIdx.x + 1];
  Cursor at;
  at.request = first.x, at.tile = first.y;
  const int last_request = last.x, last_tile = last.y;
  if (at.request > last_request || (at.request == last_request && at.tile >= last_tile))
    return;
  enter_request(at, p, last_request, last_tile, first.z);
  settle(at, p, last_request, last_tile);
  if (at.tile >= at.end)
    return;
  if (threadIdx.x < TILE_BARRIERS) {
    init_barrier(full + threadIdx.x * 8, LOADERS + LOADERS / 32); // copies of all lanes, and a lane a warp
    init_barrier(empty + threadIdx.x * 8, CONSUMERS);
  }
  if (threadIdx.x < 2)
    init_barrier(ready + threadIdx.x * 8, CONSUMERS / 2); // a side's probabilities
  if (threadIdx.x == 2)
    init_barrier(all, CONSUMERS);
  __syncthreads();
  Place place = {0, 0};

  if (threadIdx.x >= CONSUMERS) { // load: a warp one quarter of each tile, four lanes a row, 64 bytes at a time
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const int row = (threadIdx.x % LOADERS) / 32 * QUARTER + (threadIdx.x % 32) / 4, lane = threadIdx.x % 4;
    Page next[2] = {page_of(at, p, row), page_of(at, p, row + 8)};
    while (at.tile < at.end) {
      const i64 slots[2] = {slot_of(next[0], at, p, row), slot_of(next[1], at, p, row + 8)};
      at.tile++;
      settle(at, p, last_request, last_tile);
      next[0] = page_of(at, p, row), next[1] = page_of(at, p, row + 8);
      const u32 quarter = place.quarter_of(row / QUARTER);
      if (4 * place.number + row / QUARTER >= STAGES) {
        const Place old = {(4 * place.number + row / QUARTER - STAGES) / 4, 0}; // what the quarter held
        wait_for(empty + old.barrier(), old.parity());
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const i64 slot = slots[half];
        const bool ok = slot >= 0;
        const u32 bytes = ok ? 16 : 0; // zeros for the rest
        const u8 *from = p.latent + (ok ? slot : 0) * p.latent_stride + lane * 16;
        const int in_quarter = row % QUARTER + half * 8;
        const u32 to =
            shared_address(ring) + quarter * QUARTER_BYTES + in_quarter * ROW_BYTES + (lane ^ (row & 2)) * 16;
#pragma unroll
        for (int i = 0; i < LATENT / 64; i++)
          copy16(to + i * 64, from + i * 64, bytes);
        copy16(to + LATENT, p.rope + (ok ? slot : 0) * p.rope_stride + lane * 16, bytes);
        if (lane == 0)
          live[quarter * QUARTER + in_quarter] = ok;
      }
      arrive_with_copies(full + place.barrier());
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        arrive(full + place.barrier());
      place = place.plus(1);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0); // the compiler would read it anew each time
    const int side = warp / 4, group = warp % 4;
    // Scores: a warp takes a quarter of its side's tiles. Both sides: a warp takes 64 dims of all tiles, a lane 8 of
    // them, for tokens t, t + 4, t + 8, t + 12 of a quarter.
    const u32 swizzle = g & 2; // in chunks of 16 bytes; the same for rows g and g + 8
    const u32 key_row = shared_address(ring) + g * ROW_BYTES;
    const u32 key_main = key_row + (t ^ swizzle) * 16;
    const u32 key_tail = key_row + LATENT + ((t / 2) ^ swizzle) * 16 + (t & 1) * 8;
    const u32 value_at = shared_address(ring) + t * ROW_BYTES + ((warp * 64 + g * 8) ^ ((t & 2) * 16));
    // Token a + 4 b of 16 is step 2 a + (b & 1) + 8 (b / 2) of k, as a lane's output fragment has it.
    const u32 chance_to = group * 32 + 2 * (2 * (g & 3) + (g >> 2));
    u8 *const own_chances = chances + side * QUERY_BLOCK;
    const u32 query_rows = rows_at(queries), chance_rows = rows_at(chances);
    int level = 0; // of `shifts`
    u32 heard = 0; // tiles of the other side so far
    u32 met = 0;
    auto meet_all = [&]() { // of the warps that multiply
      arrive(all);
      wait_for(all, met++ & 1);
    };
    int request = at.request, tile = at.tile, end = at.end;
    while (true) { // one request, or the worker's part of it
#pragma unroll 1
      for (int n = warp; n < HEAD_TILES; n += WARPS) {
        Query q[2];
        float up[2], down[2];
        q[0].load(p, request, first_head + n * 8 + g, 0);
        q[1].load(p, request, first_head + n * 8 + g, 1);
        down[0] = q[0].scale(p, up[0]), down[1] = q[1].scale(p, up[1]);
        const float both = fminf(up[0], up[1]);
        if (t == 0)
          factors[n * 8 + g] = up[0] < up[1] ? down[0] : down[1];
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
          for (int i = 0; i < 18; i++) {
            const int block = i < 16 ? part * 4 + i / 4 : 8, step = i < 16 ? i % 4 : part * 2 + i - 16;
            u8 *to = queries + block * QUERY_BLOCK + n * 1024 + g * 128 + 4 * t;
            *(u32 *)(to + ((2 * step) ^ g) * 16) = q[part].half(i, 0, both);
            *(u32 *)(to + ((2 * step + 1) ^ g) * 16) = q[part].half(i, 1, both);
          }
      }
      if (threadIdx.x < HEADS)
        shifts[level * HEADS + threadIdx.x] = NEVER;
      publish();
      meet_all();

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
      u32 pair[HEAD_TILES][2]; // probabilities of rows g and g + 8, heads 2 t and 2 t + 1

      const int tiles = end - tile;
      Place ahead = side ? place.plus(1) : place; // of the tile that this side scores next
      // `i` is the tile whose values are added; this side scores its own tiles one step earlier.
#pragma unroll 1
      for (int i = side - 1; i < tiles; i++) {
        bool raise;
        if ((i & 1) != side) {
          if (i + 1 < tiles) {
            const u32 from = ahead.quarter_of(group) * QUARTER_BYTES;
            // Through a shuffle, which the compiler cannot move: sums of it with constants would fill the registers.
            const u32 query_now = __shfl_sync(~0u, query_rows, 0);
            uint4 above[2], below[2]; // this block's bytes and the next one's, on their way
            auto fetch = [&](int block) {
              uint4 &a = above[block & 1], &b = below[block & 1];
              if (block < 8) {
                a = load_shared16(key_main + from + block * 64);
                b = load_shared16(key_main + from + block * 64 + 8 * ROW_BYTES);
              } else {
                const u32 second = swizzle ? -32 : 32; // the other 32 columns
                const uint2 a0 = load_shared8(key_tail + from), b0 = load_shared8(key_tail + from + 8 * ROW_BYTES);
                const uint2 a1 = load_shared8(key_tail + from + second);
                const uint2 b1 = load_shared8(key_tail + from + second + 8 * ROW_BYTES);
                a = make_uint4(a0.x, a0.y, a1.x, a1.y), b = make_uint4(b0.x, b0.y, b1.x, b1.y);
              }
            };
            auto score_pair = [&](int block, int j, u32 a0, u32 b0, u32 a1, u32 b1) {
              const u32 key[2][4] = {{widen_low(a0), widen_low(b0), widen_high(a0), widen_high(b0)},
                                     {widen_low(a1), widen_low(b1), widen_high(a1), widen_high(b1)}};
              wgmma_fence();
              wgmma(score, key[0], query_now + (block * QUERY_BLOCK + j * 32) / 16, block > 0 || j > 0);
              wgmma(score, key[1], query_now + (block * QUERY_BLOCK + j * 32 + 32) / 16, true);
              wgmma_commit();
              wgmma_wait<1>(); // the operands of the products before are free
            };
            wait_for(full + ahead.barrier(), ahead.parity());
            fetch(0);
#pragma unroll
            for (int block = 0; block < 9; block++) {
              if (block < 8)
                fetch(block + 1);
              const uint4 a = above[block & 1], b = below[block & 1];
              score_pair(block, 0, a.x, b.x, a.y, b.y);
              score_pair(block, 2, a.z, b.z, a.w, b.w);
            }
            wgmma_wait<0>();
            ahead = ahead.plus(2);
          }
          if (i < 0)
            continue;
          wait_for(ready + (side ^ 1) * 8, heard++ & 1);
          raise = raised[side ^ 1];
          wait_for(full + place.barrier(), place.parity());
        } else {
          const u8 *mine = live + place.quarter_of(group) * QUARTER + g;
          const bool alive[2] = {mine[0] != 0, mine[8] != 0};
          bool beyond = false;
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++) {
            const float2 factor = *(const float2 *)(factors + n * 8 + 2 * t);
            const float2 shift = *(const float2 *)(shifts + level * HEADS + n * 8 + 2 * t);
#pragma unroll
            for (int r = 0; r < 2; r++) {
              const float a = alive[r] ? fmaf(score[4 * n + 2 * r], factor.x, shift.x) : NOTHING;
              const float b = alive[r] ? fmaf(score[4 * n + 2 * r + 1], factor.y, shift.y) : NOTHING;
              beyond |= fmaxf(a, b) > P_SHIFT + HEADROOM;
              pair[n][r] = pack_half(power2(a), power2(b));
            }
          }
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
              store_pair(own_chances + n * 1024, pair[n][r], chance_to + r * 16);
          publish();
          raise = any_of_group(OWN_BAR + side, beyond);
          if (raise) {
#pragma unroll
            for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
              for (int e = 0; e < 2; e++) {
                const float factor = factors[n * 8 + 2 * t + e];
                float best = fmaxf(alive[0] ? score[4 * n + e] * factor : NOTHING,
                                   alive[1] ? score[4 * n + 2 + e] * factor : NOTHING);
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                  best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
                if (g == 0)
                  tops[warp * HEADS + n * 8 + 2 * t + e] = best;
              }
            meet(OWN_BAR + side);
#pragma unroll
            for (int n = 0; n < HEAD_TILES; n++) {
              float shift[2], factor[2];
#pragma unroll
              for (int e = 0; e < 2; e++) {
                const int head = n * 8 + 2 * t + e;
                factor[e] = factors[head];
                shift[e] = shifts[level * HEADS + head];
#pragma unroll
                for (int w = 0; w < 4; w++)
                  shift[e] = fminf(shift[e], P_SHIFT - tops[(side * 4 + w) * HEADS + head]);
                if (group == 0 && g == 0)
                  shifts[(level + 1 & 3) * HEADS + head] = shift[e];
              }
#pragma unroll
              for (int r = 0; r < 2; r++) {
                const float a = alive[r] ? fmaf(score[4 * n + 2 * r], factor[0], shift[0]) : NOTHING;
                const float b = alive[r] ? fmaf(score[4 * n + 2 * r + 1], factor[1], shift[1]) : NOTHING;
                pair[n][r] = pack_half(power2(a), power2(b));
                store_pair(own_chances + n * 1024, pair[n][r], chance_to + r * 16);
              }
            }
            publish();
            meet(OWN_BAR + side);
          }
          if (threadIdx.x % 128 == 0)
            raised[side] = raise;
          arrive(ready + side * 8);
        }
        if (raise) {
          const int lower = level + 1 & 3;
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const float old = shifts[level * HEADS + n * 8 + 2 * t + e];
              const float now = shifts[lower * HEADS + n * 8 + 2 * t + e];
              const float alpha = now == old ? 1.0f : power2(now - old);
              sum[n][e] *= alpha;
#pragma unroll
              for (int j = 0; j < 4; j++)
                output[j][4 * n + e] *= alpha, output[j][4 * n + e + 2] *= alpha;
            }
          level = lower;
        }
        if ((i & 1) == side) {
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
              const float2 both = unpack_half(pair[n][r]); // as rounded, so that the weights sum to one
              sum[n][0] += both.x, sum[n][1] += both.y;
            }
        }

        const u32 chance_now = __shfl_sync(~0u, chance_rows + (i & 1) * (QUERY_BLOCK / 16), 0);
        uint2 v[2][4]; // this quarter's bytes and the next one's, on their way
        auto fetch = [&](int k) {
          const u32 from = value_at + place.quarter_of(k) * QUARTER_BYTES;
#pragma unroll
          for (int b = 0; b < 4; b++)
            v[k & 1][b] = load_shared8(from + b * 4 * ROW_BYTES);
        };
        fetch(0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
          if (k < 3)
            fetch(k + 1);
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            u32 value[2][4];
            value_fragment(v[k & 1], j, value[0]);
            value_fragment(v[k & 1], j + 1, value[1]);
            wgmma_fence();
            wgmma(output[j], value[0], chance_now + k * 2, true);
            wgmma(output[j + 1], value[1], chance_now + k * 2, true);
            wgmma_commit();
            wgmma_wait<1>();
          }
        }
        arrive(empty + place.barrier()); // the tile's bytes are in registers
        wgmma_wait<0>();
        place = place.plus(1);
      }

#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
          for (int step = 4; step < 32; step *= 2)
            sum[n][e] += __shfl_xor_sync(~0u, sum[n][e], step);
          if (g == 0)
            tops[warp * HEADS + n * 8 + 2 * t + e] = sum[n][e];
        }
      meet_all();
      const Target target = {tile == 0 && end == tiles_of(p.lengths[request]), request,
                             2 * (i64)blockIdx.x + (tile == 0 ? 1 : 0)};
      if (threadIdx.x < HEADS) {
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
          total += tops[w * HEADS + threadIdx.x];
        const bool some = total > 0.0f || total != total; // NaN goes through
        factors[threadIdx.x] = some ? p.value_scale / total : 0.0f;
        if (first_head + threadIdx.x < p.heads)
          target.store_lse(p, first_head + threadIdx.x,
                           some ? log2_of(total) - shifts[level * HEADS + threadIdx.x] : NOTHING);
      }
      meet_all();
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int local = n * 8 + 2 * t + e, head = first_head + local;
          if (head >= p.heads)
            continue;
          const float by = factors[local];
          float v[8]; // dims 64 warp + 8 g + 0..7
#pragma unroll
          for (int j = 0; j < 4; j++)
            v[2 * j] = output[j][4 * n + e] * by, v[2 * j + 1] = output[j][4 * n + e + 2] * by;
          target.store(p, head, warp * 64 + g * 8, v);
        }
      meet_all(); // the sums are read before the next request writes there

      Cursor after = {request, end, end, 0, 0};
      settle(after, p, last_request, last_tile);
      request = after.request, tile = after.tile, end = after.end;
      if (tile >= end)
        return;
    }
  }
}
