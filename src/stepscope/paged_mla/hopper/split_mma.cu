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
// Compiled with -DHEADS=8|16, -DTOKENS=32|64 (a tile), -DSTAGES=n, -DMIN_BLOCKS=n.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;

#define WARPS 8
#define ROW_BYTES 576
#define LATENT 512
#define TILE_BYTES (TOKENS * ROW_BYTES)
#define HEAD_TILES (HEADS / 8)
#define TOKEN_GROUPS (TOKENS / 16)
#define K_PARTS (WARPS / TOKEN_GROUPS)     // scores: warps that share 16 tokens, each with its part of the 576 columns
#define K_STEPS (36 / K_PARTS)             // MMAs of 16 columns a warp
#define K_GROUPS (8 / K_PARTS)             // of them in whole groups of 64 latent columns; the rest are rope columns
#define ROW_LANES (32 * WARPS / TOKENS)    // lanes that load one row
#define SCORE_STRIDE (TOKENS + 8)          // floats a head; 32 mod 128 bytes spreads the heads over the banks
#define P_SHIFT 12.0f   // probabilities are stored times 2^12: fp16 keeps small ones normal

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
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

__device__ __forceinline__ u32 load_shared4(u32 at) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
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

__device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int step = 16; step; step >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) split_mma(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 shared[];
  float *scores = (float *)(shared + STAGES * TILE_BYTES);     // [K_PARTS][HEADS][SCORE_STRIDE]
  float *rescale = scores + K_PARTS * HEADS * SCORE_STRIDE;    // [HEADS]
  float *final_max = rescale + HEADS, *final_sum = final_max + HEADS;
  u8 *live = (u8 *)(final_sum + HEADS);                        // [STAGES][TOKENS], in score order

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

  // Loads: ROW_LANES lanes a row, each 16 bytes at a time.
  const int load_lane = lane % ROW_LANES, load_row = threadIdx.x / ROW_LANES;
  const u32 load_to = shared_address(shared) + load_row * ROW_BYTES + ((load_lane ^ (load_row & 2)) * 16);
  // Score order puts the tokens of one lane's output fragment side by side: token a + 4 b of 16 at 4 a + b.
  const int load_live = (load_row & ~15) + 4 * (load_row & 3) + ((load_row >> 2) & 3);
  Page next = page_of(load, p, load_row);
  int load_stage = 0;

  auto issue = [&]() {
    if (load.tile < load.end) {
      i64 slot = slot_of(next, p);
      const bool ok = slot >= 0;
      const u32 bytes = ok ? 16 : 0;
      slot = ok ? slot : 0;
      const u8 *from = p.latent + slot * p.latent_stride + load_lane * 16;
      const u32 to = load_to + load_stage * TILE_BYTES;
#pragma unroll
      for (int i = 0; i < LATENT / 16 / ROW_LANES; i++) copy16(to + i * ROW_LANES * 16, from + i * ROW_LANES * 16, bytes);
      if (load_lane < 4) copy16(to + LATENT, p.rope + slot * p.rope_stride + load_lane * 16, bytes);
      if (load_lane == 0) live[load_stage * TOKENS + load_live] = ok;
      load.tile++;
      settle(load, p, last_request, last_tile);
      next = page_of(load, p, load_row);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    load_stage = load_stage + 1 == STAGES ? 0 : load_stage + 1;
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) issue();

  // Scores: a warp takes 16 tokens and its part of the columns: 512 / K_PARTS latent ones, 64 / K_PARTS rope ones.
  const int part = warp / TOKEN_GROUPS, token_group = warp % TOKEN_GROUPS;
  const u32 swap = g & 2; // chunks of 16 bytes; the same for rows g and g + 8
  const u32 key_at = shared_address(shared) + (token_group * 16 + g) * ROW_BYTES;
  const u32 key_main = key_at + part * K_GROUPS * 64 + (t ^ swap) * 16;
#if K_PARTS == 2
  const u32 key_tail = key_at + LATENT + ((part * 2 + t / 2) ^ swap) * 16 + (t & 1) * 8;
#else
  const u32 key_tail = key_at + LATENT + (part ^ swap) * 16 + t * 4;
#endif
  // Output: a warp takes 64 dims, a lane 8 of them, for tokens t, t + 4, t + 8, t + 12 of each 16.
  const u32 value_at = shared_address(shared) + t * ROW_BYTES + ((warp * 64 + g * 8) ^ ((t & 2) * 16));
  const int score_row = 4 * (g & 3) + (g >> 2); // score order of row g; row g + 8 is two further

  int stage = 0;
  while (true) { // one request, or the worker's part of it
    const int first_tile = work.tile;

    u32 query[K_STEPS][HEAD_TILES][2];
    float factor[HEAD_TILES][2]; // of heads 2 t and 2 t + 1: turns an accumulator into a base-2 logit
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) {
      const int head = first_head + n * 8 + g;
      u32 raw[K_STEPS][2];
#pragma unroll
      for (int i = 0; i < K_STEPS; i++) raw[i][0] = raw[i][1] = 0;
      if (head < p.heads) {
        const u16 *nope = p.q_nope + work.request * p.q_nope_batch + head * p.q_nope_head + part * K_GROUPS * 64 + t * 16;
        const u16 *rope = p.q_pe + work.request * p.q_pe_batch + head * p.q_pe_head + part * (64 / K_PARTS);
#pragma unroll
        for (int i = 0; i < 2 * K_GROUPS; i++) {
          const uint4 v = *(const uint4 *)(nope + (i / 2) * 64 + (i % 2) * 8);
          raw[2 * i][0] = v.x, raw[2 * i][1] = v.y, raw[2 * i + 1][0] = v.z, raw[2 * i + 1][1] = v.w;
        }
#if K_PARTS == 2
        const uint4 v = *(const uint4 *)(rope + t * 8);
        raw[16][0] = v.x, raw[16][1] = v.y, raw[17][0] = v.z, raw[17][1] = v.w;
#else
        const uint2 v = *(const uint2 *)(rope + t * 4);
        raw[8][0] = v.x, raw[8][1] = v.y;
#endif
      }
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < K_STEPS; i++)
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
      for (int i = 0; i < K_STEPS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          query[i][n][j] = pack_half(bf16_low(raw[i][j]) * up, bf16_high(raw[i][j]) * up);
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
    float running_max[HEAD_TILES], running_sum[HEAD_TILES]; // of head `warp` + 8 n, the sum of this lane's tokens
#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) running_max[n] = __uint_as_float(0xff800000u), running_sum[n] = 0.0f;

    for (; work.tile < work.end; work.tile++) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
      __syncthreads(); // the tile is there for all; the stage before it is free
      issue();
      const u32 at = stage * TILE_BYTES;

      float score[2][HEAD_TILES][4];
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int n = 0; n < HEAD_TILES; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) score[c][n][i] = 0.0f;
#pragma unroll
      for (int i = 0; i <= K_GROUPS; i++) {
        u32 top[4], low[4];
        if (i < K_GROUPS) {
          const uint4 a = load_shared16(key_main + at + i * 64);
          const uint4 b = load_shared16(key_main + at + i * 64 + 8 * ROW_BYTES);
          top[0] = a.x, top[1] = a.y, top[2] = a.z, top[3] = a.w;
          low[0] = b.x, low[1] = b.y, low[2] = b.z, low[3] = b.w;
        } else {
#if K_PARTS == 2
          const uint2 a = load_shared8(key_tail + at), b = load_shared8(key_tail + at + 8 * ROW_BYTES);
          top[0] = a.x, top[1] = a.y, low[0] = b.x, low[1] = b.y;
#else
          top[0] = load_shared4(key_tail + at), low[0] = load_shared4(key_tail + at + 8 * ROW_BYTES);
#endif
        }
#pragma unroll
        for (int j = 0; j < (i < K_GROUPS ? 4 : 4 / K_PARTS); j++) {
          const u32 a0 = widen_low(top[j]), a1 = widen_low(low[j]);
          const u32 a2 = widen_high(top[j]), a3 = widen_high(low[j]);
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++)
            mma(score[j & 1][n], a0, a1, a2, a3, query[4 * i + j][n][0], query[4 * i + j][n][1]);
        }
      }
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        float *to = scores + (part * HEADS + n * 8 + 2 * t) * SCORE_STRIDE + token_group * 16 + score_row;
#pragma unroll
        for (int i = 0; i < 4; i++)
          to[(i & 1) * SCORE_STRIDE + (i & 2)] = (score[0][n][i] + score[1][n][i]) * factor[n][i & 1];
      }
      __syncthreads(); // scores are complete

#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const int head = warp + 8 * n;
        float *row = scores + head * SCORE_STRIDE;
        const float nothing = __uint_as_float(0xff800000u);
        float x[TOKENS / 32];
        const u8 *flags = live + stage * TOKENS + lane * (TOKENS / 32);
#pragma unroll
        for (int i = 0; i < TOKENS / 32; i++) x[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < K_PARTS; k++)
#pragma unroll
          for (int i = 0; i < TOKENS / 32; i++) x[i] += row[k * HEADS * SCORE_STRIDE + lane * (TOKENS / 32) + i];
        float best = running_max[n];
#pragma unroll
        for (int i = 0; i < TOKENS / 32; i++) x[i] = flags[i] ? x[i] : nothing, best = fmaxf(best, x[i]);
        const float top = row_max(best);
        const float base = top == nothing ? 0.0f : top;
        const float alpha = power2(running_max[n] - base);
        const u32 pair = pack_half(power2(x[0] - base + P_SHIFT), power2(x[TOKENS / 32 - 1] - base + P_SHIFT));
        float low, high;
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
            : "=f"(low), "=f"(high) : "r"(pair));
        running_sum[n] = running_sum[n] * alpha + low + (TOKENS == 64 ? high : 0.0f);
        running_max[n] = top;
        __syncwarp(); // the row is read by all lanes before its head's probabilities replace it
        if (TOKENS == 64) ((u32 *)row)[lane] = pair;
        else ((u16 *)row)[lane] = pair & 0xffff;
        if (lane == 0) rescale[head] = alpha;
      }
      __syncthreads(); // probabilities are complete

      u32 chance[TOKEN_GROUPS][HEAD_TILES][2];
#pragma unroll
      for (int n = 0; n < HEAD_TILES; n++) {
        const float2 alpha = *(const float2 *)(rescale + n * 8 + 2 * t);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          output[j][n][0] *= alpha.x, output[j][n][1] *= alpha.y;
          output[j][n][2] *= alpha.x, output[j][n][3] *= alpha.y;
        }
#pragma unroll
        for (int k = 0; k < TOKEN_GROUPS; k++) {
          const uint2 v = *(const uint2 *)((const u8 *)(scores + (n * 8 + g) * SCORE_STRIDE) + k * 32 + t * 8);
          chance[k][n][0] = v.x, chance[k][n][1] = v.y;
        }
      }
#pragma unroll
      for (int k = 0; k < TOKEN_GROUPS; k++) {
        const u32 from = value_at + at + k * 16 * ROW_BYTES;
        const uint2 v0 = load_shared8(from), v1 = load_shared8(from + 4 * ROW_BYTES);
        const uint2 v2 = load_shared8(from + 8 * ROW_BYTES), v3 = load_shared8(from + 12 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const u32 select = j & 1 ? 0x7362 : 0x5140;
          const u32 first = j & 2 ? __byte_perm(v0.y, v1.y, select) : __byte_perm(v0.x, v1.x, select);
          const u32 second = j & 2 ? __byte_perm(v2.y, v3.y, select) : __byte_perm(v2.x, v3.x, select);
          const u32 a0 = widen_low(first), a1 = widen_high(first), a2 = widen_low(second), a3 = widen_high(second);
#pragma unroll
          for (int n = 0; n < HEAD_TILES; n++) mma(output[j][n], a0, a1, a2, a3, chance[k][n][0], chance[k][n][1]);
        }
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int n = 0; n < HEAD_TILES; n++) {
      const float sum = row_sum(running_sum[n]);
      if (lane == 0) final_sum[warp + 8 * n] = sum, final_max[warp + 8 * n] = running_max[n];
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
        const float sum = final_sum[local];
        const float by = sum > 0.0f || sum != sum ? p.value_scale / sum : 0.0f;
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
          const float lse = sum > 0.0f || sum != sum ? final_max[local] + log2_of(sum) - P_SHIFT
                                                     : __uint_as_float(0xff800000u);
          if (!whole) p.part_lse[part_at * p.heads + head] = lse;
          else if (p.lse != nullptr) p.lse[work.request * p.lse_batch + head] = lse * 0.6931471805599453f;
        }
      }
    __syncthreads(); // final_sum is read before the next request writes it

    settle(work, p, last_request, last_tile);
    if (work.tile >= work.end) return;
  }
}
