// Split-KV MLA decode over an e4m3 pool for Hopper: 8 or 16 heads a block, mma.sync with swapped operands.
//
// One block walks a contiguous run of tiles that the plan gave it, over one or several requests:
//   scores  S^T[token, head]  = K[token, 576]  x Q^T[576, head]     (tokens are the MMA's M, heads its N)
//   output  O^T[dim,   head] += V^T[dim, token] x P^T[token, head]  (dims are M, heads N)
// so 8 heads fill an MMA that would be half empty with heads as M. K and V are the same bytes in shared memory:
// each is widened e4m3 -> f16 on its way into the MMA's A registers, with nothing written back.
// Both products may permute their K index as long as the two operands agree, and use it to read 16 (scores)
// or 8 (output) consecutive bytes a lane. A row of 576 bytes is 4.5 times the 128 bytes of all banks; exchanging the
// 32-byte halves of each 64 bytes in rows with bit 1 set makes every access below free of bank conflicts.
//
// Probabilities are taken against a maximum that is only raised when a logit passes it by more than 2^HEADROOM, which
// fp16 has room for: the usual tile needs no reduction, and one barrier.
//
// Compiled with -DHEADS=8|16|32, -DSTAGES=n, -DMIN_BLOCKS=n, -DQUERY_SHARED=0|1 (Q's fragments in shared memory or
// in registers).

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;

#define WARPS 8
#define TOKENS 64
#define ROW_BYTES 576
#define LATENT 512
#define TILE_BYTES (TOKENS * ROW_BYTES)
#define HEAD_TILES (HEADS / 8)
#define CHAINS (HEAD_TILES <= 2 ? 2 : 1) // independent score accumulators a head tile, to hide the MMA's latency
#define CHANCE_BYTES 160 // a head's probabilities; 32 mod 128 spreads the heads over the banks
#define P_SHIFT 6.0f     // probabilities are stored times 2^6: fp16 keeps small ones normal
#define HEADROOM 8.0f    // P_SHIFT + HEADROOM < 16, the exponent at which fp16 ends
#define NOTHING __uint_as_float(0xff800000u)

struct Params {
  const u16 *q_nope, *q_pe; // bf16
  i64 q_nope_batch, q_nope_head, q_pe_batch, q_pe_head; // strides in elements
  const u8 *latent, *rope;
  i64 latent_stride, rope_stride, slots; // bytes, bytes, rows
  const void *pages;                     // page numbers, 32 or 64 bits
  const void *indptr;                    // null: pages is a table of `table_stride` entries a request
  i64 table_stride;
  const int *lengths, *starts; // plan: tokens a request; (request, tile) at which each worker starts
  void *out;
  float *lse;
  i64 out_batch, out_head, lse_batch;
  float *part_out, *part_lse;
  int heads, page_size, wide_pages, wide_indptr, out_float;
  float score_scale, value_scale;
};

struct Cursor {
  int request, tile, end, length;
  i64 first_page;
};

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy16(u32 to, const void *from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ u32 widen_low(u32 four) {
  u32 pair;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(pair) : "r"(four));
  return pair;
}

__device__ __forceinline__ u32 widen_high(u32 four) {
  u32 pair;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(pair) : "r"(four));
  return pair;
}

__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_shared16(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

__device__ __forceinline__ uint2 load_shared8(u32 at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ u32 pack_half(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ int tiles_of(int length) { return (length + TOKENS - 1) / TOKENS; }

__device__ __forceinline__ void enter_request(Cursor &c, const Params &p, int last_request, int last_tile) {
  c.length = p.lengths[c.request];
  c.end = c.request == last_request ? last_tile : tiles_of(c.length);
  if (p.indptr == nullptr) c.first_page = c.request * p.table_stride;
  else if (p.wide_indptr) c.first_page = ((const i64 *)p.indptr)[c.request];
  else c.first_page = ((const int *)p.indptr)[c.request];
}

// Steps over requests without tiles; past the worker's end, request > last_request or tile >= end.
__device__ __forceinline__ void settle(Cursor &c, const Params &p, int last_request, int last_tile) {
  while (c.tile >= c.end && c.request < last_request) {
    c.request++;
    c.tile = 0;
    if (c.request == last_request && last_tile == 0) { c.end = 0; return; }
    enter_request(c, p, last_request, last_tile);
  }
}

// The page of one token of the cursor's tile, as loaded: widening a narrow number here would wait for its load.
struct Page {
  int low, high, within;
};

__device__ __forceinline__ Page page_of(const Cursor &c, const Params &p, int row) {
  const int token = c.tile * TOKENS + row;
  const int page = p.page_size == 1 ? token : token / p.page_size;
  Page found = {-1, -1, p.page_size == 1 ? 0 : token - page * p.page_size};
  if (c.tile < c.end && token < c.length) {
    const int *at = (const int *)p.pages + (c.first_page + page) * (p.wide_pages ? 2 : 1);
    found.low = at[0];
    if (p.wide_pages) found.high = at[1];
  }
  return found;
}

// Its slot, or -1: past the request's end or outside the pool.
__device__ __forceinline__ i64 slot_of(const Page &found, const Params &p) {
  const i64 number = p.wide_pages ? (i64)found.high << 32 | (u32)found.low : (i64)found.low;
  if (number < 0 || number >= p.slots) return -1; // so that the product cannot overflow
  const i64 slot = number * p.page_size + found.within;
  return slot < p.slots ? slot : -1;
}

// 2^(logit - top + P_SHIFT) of two heads, in fp16.
__device__ __forceinline__ u32 chance_of(const float (&logit)[2], const float (&top)[2]) {
  const float a = power2(logit[0] - (top[0] == NOTHING ? 0.0f : top[0]) + P_SHIFT);
  const float b = power2(logit[1] - (top[1] == NOTHING ? 0.0f : top[1]) + P_SHIFT);
  return pack_half(a, b);
}

__device__ __forceinline__ float2 unpack_half(u32 pair) {
  float2 v;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(v.x), "=f"(v.y) : "r"(pair));
  return v;
}

__device__ __forceinline__ void store_pair(u8 *to, u32 pair) {
  *(u16 *)to = (u16)pair;
  *(u16 *)(to + CHANCE_BYTES) = (u16)(pair >> 16);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) split_mma(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 shared[];
  float2 *swapped = (float2 *)(shared + STAGES * TILE_BYTES);    // [WARPS][HEAD_TILES][32 lanes]
  u8 *chances = (u8 *)(swapped + WARPS * HEAD_TILES * 32);       // [2][HEADS][CHANCE_BYTES]
  float *tops = (float *)(chances + 2 * HEADS * CHANCE_BYTES);   // [WARPS][HEADS]: maxima, at the end sums
  u8 *live = (u8 *)(tops + WARPS * HEADS);                       // [STAGES][TOKENS]
  uint2 *queries = (uint2 *)(live + STAGES * TOKENS);            // with QUERY_SHARED: [2][18][HEAD_TILES][32 lanes]

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_head = blockIdx.y * HEADS;
  const int worker = blockIdx.x;

  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  Cursor load;
  load.request = p.starts[2 * worker];
  load.tile = p.starts[2 * worker + 1];
  const int last_request = p.starts[2 * worker + 2], last_tile = p.starts[2 * worker + 3];
  if (load.request > last_request || (load.request == last_request && load.tile >= last_tile)) return;
  enter_request(load, p, last_request, last_tile);
  settle(load, p, last_request, last_tile);
  Cursor work = load;
  if (work.tile >= work.end) return;

  // Loads: a warp fills 8 rows, four lanes a row, 64 bytes at a time.
  const int load_row = warp * 8 + g;
  const u32 load_to = shared_address(shared) + load_row * ROW_BYTES + ((t ^ (load_row & 2)) * 16);
  Page next = page_of(load, p, load_row);
  int load_stage = 0;

  auto issue = [&]() {
    if (load.tile < load.end) {
      i64 slot = slot_of(next, p);
      const bool ok = slot >= 0;
      const u32 bytes = ok ? 16 : 0;
      slot = ok ? slot : 0;
      const u8 *from = p.latent + slot * p.latent_stride + t * 16;
      const u32 to = load_to + load_stage * TILE_BYTES;
#pragma unroll
      for (int i = 0; i < LATENT / 64; i++) copy16(to + i * 64, from + i * 64, bytes);
      copy16(to + LATENT, p.rope + slot * p.rope_stride + t * 16, bytes);
      if (t == 0) live[load_stage * TOKENS + load_row] = ok;
      load.tile++;
      settle(load, p, last_request, last_tile);
      next = page_of(load, p, load_row);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };

#pragma unroll
  for (int s = 0; s < STAGES - 2; s++) issue();

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
  while (true) { // one request, or the worker's part of it
    const int first_tile = work.tile;

#if !QUERY_SHARED
    uint2 query[18][HEAD_TILES];
#endif
    float factor[HEAD_TILES][2]; // of heads 2 t and 2 t + 1: turns an accumulator into a base-2 logit
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) {
      const int head = first_head + n * 8 + g;
      u32 raw[18][2];
#pragma unroll
      for (int i = 0; i < 18; i++) raw[i][0] = raw[i][1] = 0;
      if (head < p.heads) {
        const u16 *nope = p.q_nope + work.request * p.q_nope_batch + head * p.q_nope_head + part * 256 + t * 16;
        const u16 *rope = p.q_pe + work.request * p.q_pe_batch + head * p.q_pe_head + part * 32 + t * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const uint4 v = *(const uint4 *)(nope + (i / 2) * 64 + (i % 2) * 8);
          raw[2 * i][0] = v.x, raw[2 * i][1] = v.y, raw[2 * i + 1][0] = v.z, raw[2 * i + 1][1] = v.w;
        }
        const uint4 v = *(const uint4 *)rope;
        raw[16][0] = v.x, raw[16][1] = v.y, raw[17][0] = v.z, raw[17][1] = v.w;
      }
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 18; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          largest = fmaxf(largest, fmaxf(fabsf(bf16_low(raw[i][j])), fabsf(bf16_high(raw[i][j]))));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // A power of two takes the head's largest element into [2^14, 2^15): bf16 is then exact in fp16.
      const int exponent = min(14 - ((int)(__float_as_uint(largest) >> 23) - 127), 120);
      const float up = __uint_as_float((u32)(exponent + 127) << 23);
      const float down = __uint_as_float((u32)(127 - exponent) << 23) * p.score_scale;
#pragma unroll
      for (int i = 0; i < 18; i++) {
        const uint2 pair = make_uint2(pack_half(bf16_low(raw[i][0]) * up, bf16_high(raw[i][0]) * up),
                                      pack_half(bf16_low(raw[i][1]) * up, bf16_high(raw[i][1]) * up));
#if QUERY_SHARED
        if (i % 4 == group) queries[((part * 18 + i) * HEAD_TILES + n) * 32 + lane] = pair;
#else
        query[i][n] = pair;
#endif
      }
      factor[n][0] = __shfl_sync(~0u, down, 8 * t);
      factor[n][1] = __shfl_sync(~0u, down, 8 * t + 4);
    }

    float output[4][HEAD_TILES][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) output[j][n][i] = 0.0f;
    float top[HEAD_TILES][2], sum[HEAD_TILES][2]; // of heads 2 t and 2 t + 1; the sum of this thread's tokens
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) top[n][0] = top[n][1] = NOTHING, sum[n][0] = sum[n][1] = 0.0f;

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
            for (int e = 0; e < 4; e++) score[c][n][e] = 0.0f;
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
        if (i == 4 && j >= 2) break;
        const u32 a0 = widen_low(above[j]), a1 = widen_low(below[j]);
        const u32 a2 = widen_high(above[j]), a3 = widen_high(below[j]);
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
#if QUERY_SHARED
          const uint2 b = queries[((part * 18 + 4 * i + j) * HEAD_TILES + n) * 32 + lane];
#else
          const uint2 b = query[4 * i + j][n];
#endif
          mma(score[j % CHAINS][n], a0, a1, a2, a3, b.x, b.y);
        }
      }
    };

    auto find_chances = [&]() {
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (CHAINS == 2) score[0][n][i] += score[CHAINS - 1][n][i];
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
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float2 other = swapped[(warp * HEAD_TILES + n) * 32 + lane];
        logit[n][0] = alive ? logit[n][0] + other.x : NOTHING;
        logit[n][1] = alive ? logit[n][1] + other.y : NOTHING;
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
            for (int step = 4; step < 32; step *= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
            if (g == 0) tops[warp * HEADS + n * 8 + 2 * t + i] = best;
          }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++) {
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float best = top[n][i];
#pragma unroll
            for (int w = 0; w < WARPS; w++) best = fmaxf(best, tops[w * HEADS + n * 8 + 2 * t + i]);
            const float alpha = power2(top[n][i] - (best == NOTHING ? 0.0f : best));
            top[n][i] = best;
            sum[n][i] *= alpha;
#pragma unroll
            for (int j = 0; j < 4; j++) output[j][n][i] *= alpha, output[j][n][i + 2] *= alpha;
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
        chance[n] = *(const uint2 *)(chances + (odd ^ 1) * HEADS * CHANCE_BYTES + (n * 8 + g) * CHANCE_BYTES + k * 32 + t * 8);
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
        for (int n = 0; n < HEAD_TILES; n++) mma(output[j][n], a0, a1, a2, a3, chance[n].x, chance[n].y);
      }
    };

    auto step = [&]() {
      before = stage;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      odd ^= 1;
    };

    // A tile's values are added while the next tile is scored: the two have nothing to wait for in each other.
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
    __syncthreads(); // the tile is there for all, and the queries are
    issue();
#pragma unroll
    for (int i = 0; i < 5; i++) score_group(i);
    find_chances();
    step();
    for (work.tile++; work.tile < work.end; work.tile++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
      const bool raise = __syncthreads_or(beyond); // this tile and the last one's probabilities are there for all
      settle_chances(raise);
      issue(); // into the stage of the last tile but one
#pragma unroll
      for (int i = 0; i < 5; i++) {
        score_group(i);
        if (i < 4) add_group(i);
      }
      find_chances();
      step();
    }
    settle_chances(__syncthreads_or(beyond));
#pragma unroll
    for (int k = 0; k < 4; k++) add_group(k);

#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum[n][i] += __shfl_xor_sync(~0u, sum[n][i], step);
        if (g == 0) tops[warp * HEADS + n * 8 + 2 * t + i] = sum[n][i];
      }
    __syncthreads();
    const bool whole = first_tile == 0 && work.end == tiles_of(work.length);
    const i64 part_at = 2 * worker + (first_tile == 0 ? 1 : 0);
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int local = n * 8 + 2 * t + i, head = first_head + local;
        if (head >= p.heads) continue;
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += tops[w * HEADS + local];
        const bool some = total > 0.0f || total != total; // NaN goes through
        const float by = some ? p.value_scale / total : 0.0f;
        float v[8]; // dims 64 warp + 8 g + 0..7
#pragma unroll
        for (int j = 0; j < 4; j++) v[2 * j] = output[j][n][i] * by, v[2 * j + 1] = output[j][n][i + 2] * by;
        const int dim = warp * 64 + g * 8;
        if (whole && !p.out_float) {
          u16 *to = (u16 *)p.out + work.request * p.out_batch + head * p.out_head + dim;
          *(uint4 *)to = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                                    pack_bf16(v[6], v[7]));
        } else {
          float *to = whole ? (float *)p.out + work.request * p.out_batch + head * p.out_head + dim
                            : p.part_out + (part_at * p.heads + head) * LATENT + dim;
          *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
          *(float4 *)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
        }
        if (warp == 0 && g == 0) {
          const float lse = some ? top[n][i] + log2_of(total) - P_SHIFT : NOTHING;
          if (!whole) p.part_lse[part_at * p.heads + head] = lse;
          else if (p.lse != nullptr) p.lse[work.request * p.lse_batch + head] = lse * 0.6931471805599453f;
        }
      }
    __syncthreads(); // the sums are read before the next request writes there

    settle(work, p, last_request, last_tile);
    if (work.tile >= work.end) return;
  }
}
