// Kernels that only take time: what a launch costs, and whether streams run side by side.
#include "words.inc"

PROBE void noop() {}

// Spins for `ns` nanoseconds; when[2*block]: its first and last look at the clock.
PROBE void spin(u64 ns, u64* when) {
  const u64 began = nanoseconds();
  u64 now = began;
  while (now - began < ns) now = nanoseconds();
  if (threadIdx.x == 0) {
    when[2 * blockIdx.x] = began;
    when[2 * blockIdx.x + 1] = now;
  }
}

// Holds the stream until the host has queued everything behind it and sets `go`, or for `at_most` nanoseconds: a host
// that dies must not leave a kernel that never ends.
PROBE void gate(volatile u32* go, u64 at_most) {
  const u64 began = nanoseconds();
  while (*go == 0 && nanoseconds() - began < at_most) {
  }
}
