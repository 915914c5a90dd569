// What the split-KV kernels share: parameters, the walk over requests, loads into shared memory, small conversions.
//
// A tile is 64 rows of 576 bytes (512 latent, 64 rope), stored in shared memory as they are. 576 is 4.5 times the 128
// bytes of all banks, so rows of different parity use different halves of them; exchanging the 32-byte halves of each
// 64 bytes in rows with bit 1 set makes every access of the kernels free of bank conflicts.

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
#define P_SHIFT 6.0f  // probabilities are stored times 2^6: fp16 keeps small ones normal
#define HEADROOM 8.0f // P_SHIFT + HEADROOM < 16, the exponent at which fp16 ends
#define NOTHING __uint_as_float(0xff800000u)

struct Params {
  const u16 *q_nope, *q_pe;                             // bf16
  i64 q_nope_batch, q_nope_head, q_pe_batch, q_pe_head; // strides in elements
  const u8 *latent, *rope;
  i64 latent_stride, rope_stride, slots; // bytes, bytes, rows
  const void *pages;                     // page numbers, 32 or 64 bits
  const void *indptr;                    // null: pages is a table of `table_stride` entries a request
  i64 table_stride;
  const int *lengths, *starts; // plan: tokens a request; request, tile and its tokens where workers start
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

__device__ __forceinline__ void enter_request(Cursor &c, const Params &p, int last_request, int last_tile, int length) {
  c.length = length;
  c.end = c.request == last_request ? last_tile : tiles_of(c.length);
  if (p.indptr == nullptr)
    c.first_page = c.request * p.table_stride;
  else if (p.wide_indptr)
    c.first_page = ((const i64 *)p.indptr)[c.request];
  else
    c.first_page = ((const int *)p.indptr)[c.request];
}

// Steps over requests without tiles; past the worker's end, request > last_request or tile >= end.
__device__ __forceinline__ void settle(Cursor &c, const Params &p, int last_request, int last_tile) {
  while (c.tile >= c.end && c.request < last_request) {
    c.request++;
    c.tile = 0;
    if (c.request == last_request && last_tile == 0) {
      c.end = 0;
      return;
    }
    enter_request(c, p, last_request, last_tile, p.lengths[c.request]);
  }
}

// The page of one token of the cursor's tile, as loaded: widening a narrow number here would wait for its load.
struct Page {
  int low, high;
};

__device__ __forceinline__ Page page_of(const Cursor &c, const Params &p, int row) {
  const int token = c.tile * TOKENS + row;
  Page found = {-1, -1};
  if (c.tile < c.end && token < c.length) {
    const int page = p.page_size == 1 ? token : token / p.page_size;
    const int *at = (const int *)p.pages + (c.first_page + page) * (p.wide_pages ? 2 : 1);
    found.low = at[0];
    if (p.wide_pages)
      found.high = at[1];
  }
  return found;
}

// The token's slot, or -1: past the request's end or outside the pool.
__device__ __forceinline__ i64 slot_of(const Page &found, const Cursor &c, const Params &p, int row) {
  const i64 number = p.wide_pages ? (i64)found.high << 32 | (u32)found.low : (i64)found.low;
  if (number < 0 || number >= p.slots)
    return -1; // so that the product cannot overflow
  const int within = p.page_size == 1 ? 0 : (c.tile * TOKENS + row) % p.page_size;
  const i64 slot = number * p.page_size + within;
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

// Fills stages of shared memory with the worker's tiles, in order: a warp eight rows, four lanes a row, 64 bytes at a
// time.
struct Loader {
  Cursor at;
  Page next;
  int last_request, last_tile;

  // False if the worker has nothing to do.
  __device__ __forceinline__ bool start(const Params &p, int worker) {
    const int4 first = ((const int4 *)p.starts)[worker], last = ((const int4 *)p.starts)[worker + 1];
    at.request = first.x, at.tile = first.y;
    last_request = last.x, last_tile = last.y;
    if (at.request > last_request || (at.request == last_request && at.tile >= last_tile))
      return false;
    enter_request(at, p, last_request, last_tile, first.z);
    settle(at, p, last_request, last_tile);
    next = page_of(at, p, threadIdx.x / 4);
    return at.tile < at.end;
  }

  // The next tile into a stage, with a flag a row that says whether it has a slot; nothing after the last.
  __device__ __forceinline__ void load(const Params &p, u8 *tiles, u8 *live, int stage) {
    if (at.tile < at.end) {
      const int row = threadIdx.x / 4, lane = threadIdx.x % 4;
      const i64 slot = slot_of(next, at, p, row);
      const bool ok = slot >= 0;
      const u32 bytes = ok ? 16 : 0; // zeros for the rest
      const u8 *from = p.latent + (ok ? slot : 0) * p.latent_stride + lane * 16;
      const u32 to = shared_address(tiles) + stage * TILE_BYTES + row * ROW_BYTES + (lane ^ (row & 2)) * 16;
#pragma unroll
      for (int i = 0; i < LATENT / 64; i++)
        copy16(to + i * 64, from + i * 64, bytes);
      copy16(to + LATENT, p.rope + (ok ? slot : 0) * p.rope_stride + lane * 16, bytes);
      if (lane == 0)
        live[stage * TOKENS + row] = ok;
      at.tile++;
      settle(at, p, last_request, last_tile);
      next = page_of(at, p, row);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

// One head's query columns that a lane holds for its part of the scores: 18 MMA steps, two pairs of bf16 each.
struct Query {
  u32 raw[18][2];

  __device__ __forceinline__ void load(const Params &p, int request, int head, int part) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 18; i++)
      raw[i][0] = raw[i][1] = 0;
    if (head >= p.heads)
      return;
    const u16 *nope = p.q_nope + request * p.q_nope_batch + head * p.q_nope_head + part * 256 + t * 16;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint4 v = *(const uint4 *)(nope + (i / 2) * 64 + (i % 2) * 8);
      raw[2 * i][0] = v.x, raw[2 * i][1] = v.y, raw[2 * i + 1][0] = v.z, raw[2 * i + 1][1] = v.w;
    }
    const uint4 v = *(const uint4 *)(p.q_pe + request * p.q_pe_batch + head * p.q_pe_head + part * 32 + t * 8);
    raw[16][0] = v.x, raw[16][1] = v.y, raw[17][0] = v.z, raw[17][1] = v.w;
  }

  // A power of two takes the part's largest element into [2^14, 2^15): bf16 is then exact in fp16. Returns what turns
  // a score of such queries into a base-2 logit. Four lanes hold one head.
  __device__ __forceinline__ float scale(const Params &p, float &up) const {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 18; i++)
#pragma unroll
      for (int j = 0; j < 2; j++)
        largest = fmaxf(largest, fmaxf(fabsf(bf16_low(raw[i][j])), fabsf(bf16_high(raw[i][j]))));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const int exponent = min(14 - ((int)(__float_as_uint(largest) >> 23) - 127), 120);
    up = __uint_as_float((u32)(exponent + 127) << 23);
    return __uint_as_float((u32)(127 - exponent) << 23) * p.score_scale;
  }

  __device__ __forceinline__ u32 half(int i, int j, float up) const {
    return pack_half(bf16_low(raw[i][j]) * up, bf16_high(raw[i][j]) * up);
  }
};

// Where a lane's results of one piece go: the request's own output, or a part to be merged.
struct Target {
  bool whole;
  i64 request, part;

  __device__ __forceinline__ void store(const Params &p, int head, int dim, const float (&v)[8]) const {
    if (whole && !p.out_float) {
      u16 *to = (u16 *)p.out + request * p.out_batch + head * p.out_head + dim;
      *(uint4 *)to =
          make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    } else {
      float *to = whole ? (float *)p.out + request * p.out_batch + head * p.out_head + dim
                        : p.part_out + (part * p.heads + head) * LATENT + dim;
      *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
      *(float4 *)(to + 4) = make_float4(v[4], v[5], v[6], v[7]);
    }
  }

  // `lse` is in base 2.
  __device__ __forceinline__ void store_lse(const Params &p, int head, float lse) const {
    if (!whole)
      p.part_lse[part * p.heads + head] = lse;
    else if (p.lse != nullptr)
      p.lse[request * p.lse_batch + head] = lse * 0.6931471805599453f;
  }
};
