// Tensor cores through wgmma, which only Hopper has (sm_90a): the path on which its rated throughput can be reached.
#include "words.inc"

#ifndef PROBES_ON_HOST
#define K 64
#define M 64
#define N 128

// FLOP: iters * 4 * 2 * 64 * 128 * 16 a block of 128 threads (one warpgroup). Both operands lie in shared memory with the
// 128-byte swizzle; random values between 0.008 and 0.03.
PROBE __launch_bounds__(128) void wgmma_bf16(float* out, u32 iters, u64* times) {
  __shared__ __align__(1024) unsigned short tile[M * K + N * K];
  for (u32 i = threadIdx.x; i < M * K + N * K; i += blockDim.x) tile[i] = 0x3c00 + (((i * 2654435761u) >> 22) & 0x1ff);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const u32 a = (u32)__cvta_generic_to_shared(tile), b = a + M * K * 2;
  // Descriptor: address / 16, leading offset unused with a swizzle, 1024 bytes between groups of eight rows, 128B swizzle.
  const u64 shape = ((u64)1 << 16) | ((u64)(1024 >> 4) << 32) | ((u64)1 << 62);
  const u64 da = ((u64)((a & 0x3ffff) >> 4)) | shape, db = ((u64)((b & 0x3ffff) >> 4)) | shape;
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i] = 0.0f;
  const u64 c0 = clock64(), t0 = nanoseconds();
  for (u32 k = 0; k < iters; k++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int q = 0; q < 4; q++)
      asm volatile(
          "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
          "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;}"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
            "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
            "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
            "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
            "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
            "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
            "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
            "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
            "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
            "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
            "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
          : "l"(da + 2 * q), "l"(db + 2 * q));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  const u64 c1 = clock64(), t1 = nanoseconds();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 64; i++) sum += d[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (threadIdx.x == 0) {
    times[2 * blockIdx.x] = c1 - c0;
    times[2 * blockIdx.x + 1] = t1 - t0;
  }
}
#endif
