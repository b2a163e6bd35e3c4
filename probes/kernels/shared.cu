// Shared memory: the same column walk with and without padding.
#include "words.inc"

// Every warp reads `iters` columns of a 32 x 32 tile whose rows are `pitch` words apart. With a pitch of 32 all lanes meet
// in one bank (32 wavefronts a request), with 33 each has its own (1 wavefront). Bytes: 4 * 32 * iters a warp.
// cycles[block]: clock cycles of the walk in the block's first thread.
PROBE void bank_walk(u32* out, u32 pitch, u32 iters, u64* cycles) {
  __shared__ volatile u32 tile[32 * 33];
  const u32 lane = threadIdx.x & 31;
  for (u32 i = threadIdx.x; i < 32 * 33; i += blockDim.x) tile[i] = i;
  __syncthreads();
  u32 column = (threadIdx.x >> 5) & 31, sum = 0;
  const u64 began = clock64();
  for (u32 k = 0; k < iters; k++) {
    sum += tile[lane * pitch + column];
    column = (column + 1) & 31;
  }
  const u64 ended = clock64();
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (threadIdx.x == 0) cycles[blockIdx.x] = ended - began;
}
