// Tensor cores through mma.sync, which every GPU since Ampere has. Four independent chains a warp hide the latency.
#include "words.inc"

#ifndef PROBES_ON_HOST
#define MMA(TYPE)                                                                                              \
  asm volatile(                                                                                                \
      "mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
      : "+f"(c[q][0]), "+f"(c[q][1]), "+f"(c[q][2]), "+f"(c[q][3])                                             \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
#else
#define MMA(TYPE) host::mma(TYPE, c[q], a0, a1, a2, a3, b0, b1)
#endif

// FLOP: 4 * iters * 4096 a warp. MASK keeps the exponent of both halves small and the signs mixed: sums stay finite, and
// the operands are random, for zeros would draw less power and run faster. times[2*block]: cycles and nanoseconds.
#define BODY(TYPE, MASK)                                                                                       \
  const u32 h = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;                                          \
  const u32 a0 = ((h ^ 0x9e37u) * 747796405u) & MASK, a1 = (h * 2891336453u) & MASK;                            \
  const u32 a2 = (~h * 277803737u) & MASK, a3 = ((h + 7u) * 1103515245u) & MASK;                                \
  const u32 b0 = ((h + 3u) * 22695477u) & MASK, b1 = ((h ^ 5u) * 134775813u) & MASK;                            \
  float c[4][4];                                                                                               \
  _Pragma("unroll") for (int q = 0; q < 4; q++) _Pragma("unroll") for (int j = 0; j < 4; j++) c[q][j] = 0.0f;   \
  const u64 c0 = clock64(), t0 = nanoseconds();                                                                \
  for (u32 i = 0; i < iters; i++) {                                                                            \
    _Pragma("unroll") for (int q = 0; q < 4; q++) MMA(TYPE);                                                    \
  }                                                                                                            \
  const u64 c1 = clock64(), t1 = nanoseconds();                                                                \
  float sum = 0.0f;                                                                                            \
  _Pragma("unroll") for (int q = 0; q < 4; q++) _Pragma("unroll") for (int j = 0; j < 4; j++) sum += c[q][j];   \
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;                                                            \
  if (threadIdx.x == 0) {                                                                                      \
    times[2 * blockIdx.x] = c1 - c0;                                                                           \
    times[2 * blockIdx.x + 1] = t1 - t0;                                                                       \
  }

PROBE void mma_bf16(float* out, u32 iters, u64* times) { BODY("bf16", 0xbf7fbf7fu) }

PROBE void mma_f16(float* out, u32 iters, u64* times) { BODY("f16", 0xb7ffb7ffu) }
