// Memory probes. Every kernel says how many bytes it moves; the PTX interpreter in the tests counts them.
#include "words.inc"

// Reads n 16-byte vectors `reps` times. Bytes: 16 * n * reps. The folded value is stored only where it is a value that
// the host never puts in, so that no load can be left out and no store disturbs the measurement.
PROBE void read_vec4(u32* out, const uint4* __restrict__ src, u64 n, u32 reps) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u32 folded = 0;
  for (u32 r = 0; r < reps; r++)
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
      const uint4 v = src[i];
      folded ^= v.x ^ v.y ^ v.z ^ v.w;
    }
  if (folded == NEVER) out[0] = folded;
}

// The same, and the fold of every thread is kept: what the host compares with its own, once.
PROBE void read_vec4_checked(u32* out, const uint4* __restrict__ src, u64 n) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u32 folded = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    const uint4 v = src[i];
    folded ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = folded;
}

// Copies n 16-byte vectors. Bytes: 2 * 16 * n.
PROBE void copy_vec4(uint4* __restrict__ dst, const uint4* __restrict__ src, u64 n) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) dst[i] = src[i];
}

// Reads n 4-byte words, `stride` words apart, `offset` words from the start. Useful bytes: 4 * n. The footprint is
// n * stride * 4 bytes: the host keeps it constant, or larger strides would fit into the cache.
PROBE void strided_read(u32* out, const u32* __restrict__ src, u64 n, u64 stride, u32 offset) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u32 folded = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) folded ^= src[i * stride + offset];
  if (folded == NEVER) out[0] = folded;
}

// Adds two arrays of n 16-byte vectors of floats, as the local part of a reduction does. Bytes: 3 * 16 * n.
PROBE void reduce_vec4(float4* __restrict__ dst, const float4* __restrict__ a, const float4* __restrict__ b, u64 n) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    float4 x = a[i];
    const float4 y = b[i];
    x.x += y.x;
    x.y += y.y;
    x.z += y.z;
    x.w += y.w;
    dst[i] = x;
  }
}
