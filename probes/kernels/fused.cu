// RMSNorm and a projection: as two kernels, with the normalised rows written and read again, and as one.
#include "words.inc"

#ifdef PROBES_ON_HOST
#define RSQRT(x) (1.0f / sqrtf(x))
#else
#define RSQRT(x) rsqrtf(x)
#endif
#define THREADS 128
#define MAX_WIDTH 2048

// The sum over a block of THREADS threads.
__device__ __forceinline__ float block_sum(float value, float* parts) {
  parts[threadIdx.x] = value;
  __syncthreads();
  for (u32 half = THREADS / 2; half > 0; half >>= 1) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = parts[0];
  __syncthreads();
  return sum;
}

// One row a block. Bytes a row: x twice and g read, y written = 4 * 4 * width.
PROBE void rmsnorm(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ g, u32 width) {
  __shared__ float parts[THREADS];
  const u64 row = (u64)blockIdx.x * width;
  float squares = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += THREADS) squares += x[row + i] * x[row + i];
  const float scale = RSQRT(block_sum(squares, parts) / (float)width + 1e-6f);
  for (u32 i = threadIdx.x; i < width; i += THREADS) y[row + i] = x[row + i] * scale * g[i];
}

// One row a block: out[row] = y[row] * W, W as [width][columns]. Bytes a row: 4 * (width + width * columns + columns).
PROBE void project(float* __restrict__ out, const float* __restrict__ y, const float* __restrict__ w, u32 width, u32 columns) {
  __shared__ float staged[MAX_WIDTH];
  const u64 row = (u64)blockIdx.x * width;
  for (u32 i = threadIdx.x; i < width; i += THREADS) staged[i] = y[row + i];
  __syncthreads();
  for (u32 c = threadIdx.x; c < columns; c += THREADS) {
    float sum = 0.0f;
    for (u32 i = 0; i < width; i++) sum += staged[i] * w[(u64)i * columns + c];
    out[(u64)blockIdx.x * columns + c] = sum;
  }
}

// Both: x is read once and the normalised row never leaves the chip. It saves 3 * 4 * width bytes a row.
PROBE void rmsnorm_project(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ g,
                           const float* __restrict__ w, u32 width, u32 columns) {
  __shared__ float staged[MAX_WIDTH];
  __shared__ float parts[THREADS];
  const u64 row = (u64)blockIdx.x * width;
  float squares = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += THREADS) {
    const float v = x[row + i];
    squares += v * v;
    staged[i] = v * g[i];
  }
  const float scale = RSQRT(block_sum(squares, parts) / (float)width + 1e-6f);
  __syncthreads();
  for (u32 c = threadIdx.x; c < columns; c += THREADS) {
    float sum = 0.0f;
    for (u32 i = 0; i < width; i++) sum += staged[i] * w[(u64)i * columns + c];
    out[(u64)blockIdx.x * columns + c] = sum * scale;
  }
}
