// What the kernels need to be compiled by a host C++ compiler: threads of a block are fibers, so that barriers work.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define PROBE extern "C" __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace host {
extern Index thread, block, block_size, grid_size;
void barrier();
unsigned long long nanoseconds();
// One warp's m16n8k16 product: lanes meet here and leave with their part of the result.
void mma(const char* type, float* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1);
}  // namespace host

#define threadIdx host::thread
#define blockIdx host::block
#define blockDim host::block_size
#define gridDim host::grid_size
inline void __syncthreads() { host::barrier(); }
inline unsigned long long clock64() { return host::nanoseconds() * 2; }
