// A libcuda.so.1 for machines without a GPU: memory is the host's, kernels are the product's own sources built by g++.
//
// Faults come from the environment, read once:
//   FAKE_CUDA_FAULTS   "cuMemAlloc_v2=2@3,cuEventSynchronize=719": error at the n-th call (first by default); 700..719
//                      lose the context, every later call fails with the same error
//   FAKE_CUDA_HANG     function whose first call never returns
//   FAKE_CUDA_LACKS    a function that this driver is too old to have is not looked up at all: see the Python side
//   FAKE_CUDA_DEVICES, FAKE_CUDA_MEMORY, FAKE_CUDA_DRIVER, FAKE_CUDA_MODE, FAKE_CUDA_SMS, FAKE_CUDA_PEERS
// FAKE_CUDA_KERNELS names the library with the kernels.
#include <dlfcn.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "host.h"

typedef int Result;
typedef unsigned long long Address;

namespace host {
Index thread, block, block_size, grid_size;
static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<char> finished;
static std::vector<Index> positions;
static std::vector<std::vector<char>> stacks;
static int current;

void barrier() {
  const int me = current;
  swapcontext(&fibers[me], &scheduler);
  thread = positions[me];
}

unsigned long long nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static float half(const char* type, unsigned bits) {
  if (type[0] == 'b') {
    unsigned word = bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float size = exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
  return bits & 0x8000 ? -size : size;
}

struct Fragment {
  unsigned a[4], b[2];
};
static Fragment warp[32];

void mma(const char* type, float* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const int lane = thread.x & 31;
  warp[lane] = {{a0, a1, a2, a3}, {b0, b1}};
  barrier();  // of the whole block; the tests use one warp a block
  for (int q = 0; q < 4; q++) {
    const int row = lane / 4 + 8 * (q / 2), column = lane % 4 * 2 + q % 2;
    for (int k = 0; k < 16; k++) {
      const Fragment& left = warp[row % 8 * 4 + k % 8 / 2];
      const Fragment& right = warp[column * 4 + k % 8 / 2];
      const unsigned x = left.a[row / 8 + 2 * (k / 8)] >> (16 * (k % 2)) & 0xffff;
      const unsigned y = right.b[k / 8] >> (16 * (k % 2)) & 0xffff;
      c[q] += half(type, x) * half(type, y);
    }
  }
  barrier();
}
}  // namespace host

static std::map<std::string, std::pair<int, int>> faults;
static std::map<std::string, int> calls;
static std::map<Address, size_t> allocations;
static size_t used = 0;
static int lost = 0, initialised = 0;

static long number(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text ? atol(text) : otherwise;
}

static Result gate(const char* name) {
  static bool read = false;
  if (!read) {
    read = true;
    std::string text = getenv("FAKE_CUDA_FAULTS") ? getenv("FAKE_CUDA_FAULTS") : "";
    for (size_t at = 0; at < text.size();) {
      size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at), nth = text.find('@', at);
      const int which = nth < end ? atoi(text.c_str() + nth + 1) : 1;
      faults[text.substr(at, equals - at)] = {atoi(text.c_str() + equals + 1), which};
      at = end + 1;
    }
  }
  const char* hang = getenv("FAKE_CUDA_HANG");
  if (hang && std::string(hang) == name)
    for (;;) pause();
  const int count = ++calls[name];
  if (lost) return lost;
  auto fault = faults.find(name);
  if (fault == faults.end() || fault->second.second != count) return 0;
  if (fault->second.first >= 700 && fault->second.first < 720) lost = fault->second.first;
  return fault->second.first;
}

#define CALL(name, ...) \
  extern "C" __attribute__((visibility("default"))) Result name(__VA_ARGS__) { \
    if (Result failed = gate(#name)) return failed;
#define END }

CALL(cuInit, unsigned) initialised = 1; return number("FAKE_CUDA_DEVICES", 1) ? 0 : 100; END
CALL(cuDriverGetVersion, int* v) *v = number("FAKE_CUDA_DRIVER", 12020); return 0; END
CALL(cuDeviceGetCount, int* n) *n = number("FAKE_CUDA_DEVICES", 1); return initialised ? 0 : 3; END
CALL(cuDeviceGet, int* d, int i) if (i >= number("FAKE_CUDA_DEVICES", 1)) return 101; *d = i; return 0; END
CALL(cuDeviceGetName, char* b, int n, int) snprintf(b, n, "FAKE GPU (kernels run on the CPU)"); return 0; END
CALL(cuDeviceGetUuid_v2, char* u, int d) memset(u, d + 1, 16); return 0; END
CALL(cuDeviceTotalMem_v2, size_t* b, int) *b = number("FAKE_CUDA_MEMORY", 8l << 30); return 0; END
CALL(cuDeviceGetAttribute, int* v, int attribute, int)
  switch (attribute) {
    case 13: *v = 1980000; break;
    case 16: *v = number("FAKE_CUDA_SMS", 4); break;
    case 20: *v = number("FAKE_CUDA_MODE", 0); break;
    case 36: *v = 3201000; break;
    case 37: *v = 6144; break;
    case 38: *v = 1 << 20; break;
    case 75: *v = 9; break;
    case 76: *v = 0; break;
    default: *v = 1;
  }
  return 0;
END
CALL(cuDeviceCanAccessPeer, int* able, int, int) *able = number("FAKE_CUDA_PEERS", 0); return 0; END
CALL(cuDevicePrimaryCtxRetain, void** c, int d) *c = (void*)(long)(d + 1); return 0; END
CALL(cuDevicePrimaryCtxRelease_v2, int) return 0; END
CALL(cuDevicePrimaryCtxSetFlags_v2, int, unsigned) return 0; END
CALL(cuCtxSetCurrent, void*) return 0; END
CALL(cuCtxSynchronize) return 0; END
CALL(cuCtxEnablePeerAccess, void*, unsigned) return number("FAKE_CUDA_PEERS", 0) ? 0 : 217; END
CALL(cuMemGetInfo_v2, size_t* f, size_t* t) *t = number("FAKE_CUDA_MEMORY", 8l << 30); *f = *t - used; return 0; END
CALL(cuMemAlloc_v2, Address* p, size_t n)
  if (used + n > (size_t)number("FAKE_CUDA_MEMORY", 8l << 30)) return 2;
  void* got = aligned_alloc(512, (n + 511) / 512 * 512);
  if (!got) return 2;
  *p = (Address)got; allocations[*p] = n; used += n; return 0;
END
CALL(cuMemFree_v2, Address p)
  auto found = allocations.find(p);
  if (found == allocations.end()) return 1;
  used -= found->second; free((void*)p); allocations.erase(found); return 0;
END
CALL(cuMemHostAlloc, void** p, size_t n, unsigned) *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096); return *p ? 0 : 2; END
CALL(cuMemHostGetDevicePointer_v2, Address* p, void* h, unsigned) *p = (Address)h; return 0; END
CALL(cuMemFreeHost, void* p) free(p); return 0; END
CALL(cuMemcpyHtoD_v2, Address d, const void* s, size_t n) memcpy((void*)d, s, n); return 0; END
CALL(cuMemcpyDtoH_v2, void* d, Address s, size_t n) memcpy(d, (void*)s, n); return 0; END
CALL(cuMemcpyHtoDAsync_v2, Address d, const void* s, size_t n, void*) memcpy((void*)d, s, n); return 0; END
CALL(cuStreamCreate, void** s, unsigned) *s = malloc(8); return 0; END
CALL(cuStreamDestroy_v2, void* s) free(s); return 0; END
CALL(cuStreamSynchronize, void*) return 0; END
CALL(cuEventCreate, void** e, unsigned) *e = calloc(1, 8); return 0; END
CALL(cuEventDestroy_v2, void* e) free(e); return 0; END
CALL(cuEventRecord, void* e, void*) *(unsigned long long*)e = host::nanoseconds(); return 0; END
CALL(cuEventSynchronize, void*) return 0; END
CALL(cuEventElapsedTime, float* ms, void* a, void* b)
  *ms = (*(unsigned long long*)b - *(unsigned long long*)a) / 1e6f; return 0;
END
CALL(cuGetErrorName, int code, const char** text)
  static std::map<int, const char*> names = {{2, "CUDA_ERROR_OUT_OF_MEMORY"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {500, "CUDA_ERROR_NOT_FOUND"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  *text = names.count(code) ? names[code] : "CUDA_ERROR"; return 0;
END

// --- modules and launches ---

struct Function {
  void (*start)(void**);
};

CALL(cuModuleLoadData, void** m, const char* image)
  int major = 0, minor = 0;
  const char* version = strstr(image, ".version ");
  if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2) return 218;
  const long driver = number("FAKE_CUDA_DRIVER", 12020);
  const long reads = (driver >= 13000 ? 90 : driver >= 12000 ? 80 : 70) + driver % 1000 / 10;
  if (10 * major + minor > reads) return 222;
  *m = malloc(8); return 0;
END
CALL(cuModuleUnload, void* m) free(m); return 0; END
CALL(cuModuleGetFunction, void** f, void*, const char* name)
  static void* kernels = dlopen(getenv("FAKE_CUDA_KERNELS"), RTLD_NOW);
  void* start = kernels ? dlsym(kernels, (std::string("start_") + name).c_str()) : nullptr;
  if (!start) return 500;
  *f = new Function{(void (*)(void**))start}; return 0;
END

static Function* running;
static void** given;

static void fiber(int index) {
  host::thread = host::positions[index];
  running->start(given);
  host::finished[index] = 1;
}

CALL(cuLaunchKernel, void* f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, void*, void** args, void**)
  if (!bx || bx > 1024 || !gx) return 1;
  using namespace host;
  running = (Function*)f;
  given = args;
  block_size = {bx, 1, 1};
  grid_size = {gx, 1, 1};
  fibers.resize(std::max<size_t>(fibers.size(), bx));
  positions.resize(std::max<size_t>(positions.size(), bx));
  finished.resize(std::max<size_t>(finished.size(), bx));
  while (stacks.size() < bx) stacks.emplace_back(32768);
  for (unsigned b = 0; b < gx; b++) {
    block = {b, 0, 0};
    for (unsigned i = 0; i < bx; i++) {
      positions[i] = {i, 0, 0};
      finished[i] = 0;
      getcontext(&fibers[i]);
      fibers[i].uc_stack.ss_sp = stacks[i].data();
      fibers[i].uc_stack.ss_size = stacks[i].size();
      fibers[i].uc_link = &scheduler;
      makecontext(&fibers[i], (void (*)())fiber, 1, (int)i);
    }
    for (bool any = true; any;) {
      any = false;
      for (unsigned i = 0; i < bx; i++) {
        if (finished[i]) continue;
        current = i;
        thread = positions[i];
        swapcontext(&scheduler, &fibers[i]);
        any = any || !finished[i];
      }
    }
  }
  return 0;
END
