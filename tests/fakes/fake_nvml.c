/* A stand-in for libnvidia-ml.so.1, for tests of what runs on the unmodified nvidia-ml-py.
 *
 * Only the C interface that nvidia-ml-py resolves by name is here; no NVIDIA header is used. Everything it answers comes
 * from a scenario, a text file named by $FAKE_NVML that is read again whenever it changes, so that a test can break a GPU
 * while it is being read. One "key value" a line; a key may begin with gpuN. for one GPU, or gpuN.migM. for one MIG device:
 *
 *   count 8                            GPUs
 *   gpu0.util 87                       percent; likewise memutil, mem_total, mem_used, mem_reserved, temp_c, sm_mhz …
 *   gpu0.field.138 5000                a field value; gpu0.fielderr.186 3 its return code
 *   gpu0.gpm.2 71.5                    a GPM metric; gpu0.gpmerr.2 3 its return code; gpm_supported 0
 *   gpu0.gpm.2 wave:50:40:4:0.6        50 + 40 sin(2π (t − 0.6) / 4): every value may move with the monotonic clock
 *   gpu0.field.83 ramp:1000:250        1000 + 250 t
 *   gpu0.fail.nvmlDeviceGetFieldValues 15    return code of a call, by its C name
 *   fail.nvmlInitWithFlags 999
 *   delay_us.nvmlDeviceGetUtilizationRates 20000
 *   gpu1.hang.nvmlGpmSampleGet 1       never returns (interruptible)
 *   gpu1.dstate.nvmlGpmSampleGet 1     never returns, in state D
 *   gpu0.xid 79                        delivered once for each change of the value, by nvmlEventSetWait_v2
 *   gpu0.migs 2                        MIG mode on, with so many instances; gpu0.mig1.gi 7
 *   gpu0.procs 3                       compute processes, pids from 4000; gpu0.mps_procs 2
 */
#define _GNU_SOURCE
#include <libgen.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, MISMATCH = 25 };
#define MAX_GPUS 16
#define MAX_MIGS 8
#define MAX_KEYS 4096

typedef int ret;
typedef unsigned long long u64;
typedef struct { int gpu, mig; } device_t, *device; /* mig −1: the whole GPU */

static device_t gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static struct { char key[80]; char value[64]; } entries[MAX_KEYS];
static int n_entries, initialized;
static pid_t initialized_in;
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void make_devices(void) {
  for (int g = 0; g < MAX_GPUS; g++) {
    gpus[g] = (device_t){g, -1};
    for (int m = 0; m < MAX_MIGS; m++) migs[g][m] = (device_t){g, m};
  }
}

/* --- the scenario; everything here is called with the lock held ------------------------------------------------------ */

static int by_key(const void *a, const void *b) { return strcmp(a, b); }

static void refresh(void) {
  const char *path = getenv("FAKE_NVML");
  struct stat st;
  if (!path || stat(path, &st)) { n_entries = 0; return; }
  if (st.st_ino == seen.st_ino && st.st_size == seen.st_size && st.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
      st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
  FILE *file = fopen(path, "re");
  if (!file) return;
  seen = st;
  n_entries = 0;
  char line[256];
  while (n_entries < MAX_KEYS && fgets(line, sizeof line, file))
    if (line[0] != '#' && sscanf(line, "%79s %63s", entries[n_entries].key, entries[n_entries].value) == 2) n_entries++;
  fclose(file);
  qsort(entries, (size_t)n_entries, sizeof entries[0], by_key);
}

static const char *text(const char *key) {
  char wanted[sizeof entries[0]];
  snprintf(wanted, sizeof wanted, "%s", key);
  typeof(entries[0]) *found = bsearch(wanted, entries, (size_t)n_entries, sizeof entries[0], by_key);
  return found ? found->value : NULL;
}

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double number(const char *value) {
  double a, b, c, d;
  if (sscanf(value, "wave:%lf:%lf:%lf:%lf", &a, &b, &c, &d) == 4) return a + b * sin(2 * M_PI * (now_s() - d) / c);
  if (sscanf(value, "ramp:%lf:%lf", &a, &b) == 2) return a + b * now_s();
  return strtod(value, NULL);
}

/* The most particular key counts: of the MIG device, of the GPU, of all. */
static int lookup(device d, const char *name, double *out) {
  char key[128];
  const char *found = NULL;
  if (d && d->mig >= 0) { snprintf(key, sizeof key, "gpu%d.mig%d.%s", d->gpu, d->mig, name); found = text(key); }
  if (d && !found) { snprintf(key, sizeof key, "gpu%d.%s", d->gpu, name); found = text(key); }
  if (!found) found = text(name);
  if (found) *out = number(found);
  return found != NULL;
}

static double value_or(device d, const char *name, double otherwise) {
  double v;
  return lookup(d, name, &v) ? v : otherwise;
}

static int n_gpus(void) { int n = (int)value_or(NULL, "count", 1); return n < MAX_GPUS ? n : MAX_GPUS; }

static int n_migs(device d) { int n = (int)value_or(&gpus[d->gpu], "migs", 0); return n < MAX_MIGS ? n : MAX_MIGS; }

/* --- entering a call: faults first, then the rules of NVML ----------------------------------------------------------- */

static void hang_in_state_d(void) {
  if (vfork() == 0) { /* the caller sleeps uninterruptibly until this child is gone */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
}

static ret enter(const char *function, device d, int wants_device) {
  char key[96];
  pthread_mutex_lock(&lock);
  refresh();
  snprintf(key, sizeof key, "delay_us.%s", function);
  double delay = value_or(d, key, 0);
  snprintf(key, sizeof key, "fail.%s", function);
  int failure = (int)value_or(d, key, value_or(d, "fail.any", 0));
  snprintf(key, sizeof key, "hang.%s", function);
  int hang = value_or(d, key, 0) != 0;
  snprintf(key, sizeof key, "dstate.%s", function);
  int dstate = value_or(d, key, 0) != 0;
  int known = d >= &gpus[0] && d < &gpus[n_gpus()];
  if (d >= &migs[0][0] && d <= &migs[MAX_GPUS - 1][MAX_MIGS - 1]) known = d->gpu < n_gpus() && d->mig < n_migs(d);
  pthread_mutex_unlock(&lock);
  if (delay > 0) usleep((useconds_t)delay);
  if (dstate) hang_in_state_d();
  while (hang) pause();
  if (failure) return failure;
  if (strcmp(function, "nvmlInitWithFlags") == 0) return OK;
  if (!initialized || getpid() != initialized_in) return UNINITIALIZED; /* state is not inherited by a fork */
  return wants_device && !known ? INVALID : OK;
}

#define ENTER(d) do { ret r_ = enter(__func__, (d), 1); if (r_) return r_; } while (0)
#define ENTER_GLOBAL() do { ret r_ = enter(__func__, NULL, 0); if (r_) return r_; } while (0)

static int migs_now(device d) {
  pthread_mutex_lock(&lock);
  int n = n_migs(d);
  pthread_mutex_unlock(&lock);
  return n;
}

static double read_value(device d, const char *name, double otherwise) {
  pthread_mutex_lock(&lock);
  double v = value_or(d, name, otherwise);
  pthread_mutex_unlock(&lock);
  return v;
}

#define NO_MIG(d) do { if ((d)->mig >= 0) return NOT_SUPPORTED; } while (0)

/* --- the library ----------------------------------------------------------------------------------------------------- */

API ret nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  ret r = enter(__func__, NULL, 0);
  if (r == OK) { initialized = 1; initialized_in = getpid(); }
  return r;
}
API ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API ret nvmlShutdown(void) { ENTER_GLOBAL(); initialized = 0; return OK; }
API const char *nvmlErrorString(ret r) { return r ? "an error of the scenario" : "success"; }
API ret nvmlSystemGetDriverVersion(char *out, unsigned n) { ENTER_GLOBAL(); snprintf(out, n, "999.99"); return OK; }
API ret nvmlSystemGetNVMLVersion(char *out, unsigned n) { ENTER_GLOBAL(); snprintf(out, n, "13.999.99"); return OK; }

API ret nvmlDeviceGetCount_v2(unsigned *count) {
  ENTER_GLOBAL();
  pthread_mutex_lock(&lock);
  *count = (unsigned)n_gpus();
  pthread_mutex_unlock(&lock);
  return OK;
}
API ret nvmlDeviceGetHandleByIndex_v2(unsigned i, device *out) {
  if (i >= MAX_GPUS) return INVALID;
  ENTER(&gpus[i]);
  *out = &gpus[i];
  return OK;
}
API ret nvmlDeviceGetIndex(device d, unsigned *out) { ENTER(d); *out = (unsigned)d->gpu; return OK; }
API ret nvmlDeviceGetName(device d, char *out, unsigned n) { ENTER(d); snprintf(out, n, "Fake H100 80GB HBM3"); return OK; }
API ret nvmlDeviceGetUUID(device d, char *out, unsigned n) {
  ENTER(d);
  if (d->mig < 0) snprintf(out, n, "GPU-00000000-0000-0000-0000-%012d", d->gpu);
  else snprintf(out, n, "MIG-00000000-0000-0000-%04d-%012d", (int)read_value(d, "uuid", d->mig), d->gpu);
  return OK;
}
API ret nvmlDeviceGetUtilizationRates(device d, struct { unsigned gpu, memory; } *out) {
  ENTER(d);
  NO_MIG(d);
  out->gpu = (unsigned)read_value(d, "util", 0);
  out->memory = (unsigned)read_value(d, "memutil", 0);
  return OK;
}
API ret nvmlDeviceGetMemoryInfo(device d, struct { u64 total, free, used; } *out) {
  ENTER(d);
  out->total = (u64)read_value(d, "mem_total", 80e9);
  out->used = (u64)(read_value(d, "mem_used", 0) + read_value(d, "mem_reserved", 0)); /* the old call counts both */
  out->free = out->total - out->used;
  return OK;
}
API ret nvmlDeviceGetMemoryInfo_v2(device d, struct { unsigned version; u64 total, reserved, free, used; } *out) {
  ENTER(d);
  if (out->version != 0x02000028u) return MISMATCH;
  out->total = (u64)read_value(d, "mem_total", 80e9);
  out->used = (u64)read_value(d, "mem_used", 0);
  out->reserved = (u64)read_value(d, "mem_reserved", 0);
  out->free = out->total - out->used - out->reserved;
  return OK;
}
API ret nvmlDeviceGetCurrentClocksThrottleReasons(device d, u64 *out) {
  ENTER(d);
  NO_MIG(d);
  *out = (u64)read_value(d, "clocks_event_reasons", 0);
  return OK;
}
API ret nvmlDeviceGetCurrentClocksEventReasons(device d, u64 *out) {
  ENTER(d);
  NO_MIG(d);
  *out = (u64)read_value(d, "clocks_event_reasons", 0);
  return OK;
}
API ret nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *mw) { ENTER(d); NO_MIG(d); *mw = (unsigned)read_value(d, "limit_mw", 700e3); return OK; }
API ret nvmlDeviceGetClockInfo(device d, unsigned kind, unsigned *mhz) {
  ENTER(d);
  NO_MIG(d);
  *mhz = (unsigned)read_value(d, kind == 1 ? "sm_mhz" : "mem_mhz", 1980);
  return OK;
}
API ret nvmlDeviceGetTemperatureV(device d, struct { unsigned version, sensor; int celsius; } *out) {
  ENTER(d);
  NO_MIG(d);
  out->celsius = (int)read_value(d, "temp_c", 40);
  return OK;
}
API ret nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) {
  (void)sensor;
  ENTER(d);
  NO_MIG(d);
  *out = (unsigned)read_value(d, "temp_c", 40);
  return OK;
}

typedef struct {
  unsigned id, scope;
  int64_t timestamp, latency;
  unsigned type;
  ret code;
  union { double d; unsigned ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } value;
} field;

API ret nvmlDeviceGetFieldValues(device d, int n, field *f) {
  ENTER(d);
  NO_MIG(d);
  if (!f || n <= 0) return INVALID;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n; i++) {
    char key[48];
    double v;
    f[i].type = 3;
    f[i].value.ull = 0;
    snprintf(key, sizeof key, "fielderr.%u", f[i].id);
    f[i].code = (ret)value_or(d, key, OK);
    snprintf(key, sizeof key, "field.%u", f[i].id);
    if (f[i].code == OK && !lookup(d, key, &v)) f[i].code = NOT_SUPPORTED;
    if (f[i].code != OK) continue;
    snprintf(key, sizeof key, "fieldtype.%u", f[i].id);
    f[i].type = (unsigned)value_or(d, key, 3);
    if (f[i].type == 0) f[i].value.d = v;
    else if (f[i].type == 1) f[i].value.ui = (unsigned)v;
    else f[i].value.ull = (u64)v;
  }
  pthread_mutex_unlock(&lock);
  return OK;
}

/* --- processes ------------------------------------------------------------------------------------------------------- */

typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process;

static ret processes(device d, const char *name, unsigned *n, process *out) {
  unsigned have = (unsigned)read_value(d, name, 0), room = *n;
  *n = have;
  if (have && (!out || room < have)) return TOO_SMALL;
  for (unsigned i = 0; i < have; i++) out[i] = (process){4000 + i, (u64)read_value(d, "proc_mem", 1e9), ~0u, ~0u};
  return OK;
}
API ret nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, process *p) { ENTER(d); return processes(d, "procs", n, p); }
API ret nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, unsigned *n, process *p) { ENTER(d); return processes(d, "mps_procs", n, p); }

/* --- MIG ------------------------------------------------------------------------------------------------------------- */

API ret nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) {
  ENTER(d);
  *current = *pending = migs_now(d) > 0;
  return OK;
}
API ret nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *n) { ENTER(d); *n = 7; return OK; }
API ret nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned i, device *out) {
  ENTER(d);
  if ((int)i >= migs_now(d)) return NOT_FOUND;
  *out = &migs[d->gpu][i];
  return OK;
}
API ret nvmlDeviceGetGpuInstanceId(device d, unsigned *out) { ENTER(d); *out = (unsigned)read_value(d, "gi", d->mig + 1); return OK; }
API ret nvmlDeviceGetComputeInstanceId(device d, unsigned *out) { ENTER(d); *out = (unsigned)read_value(d, "ci", 0); return OK; }

/* --- events ---------------------------------------------------------------------------------------------------------- */

typedef struct { double last[MAX_GPUS]; int registered[MAX_GPUS]; struct stat seen; int notices; } event_set;
typedef struct { device d; u64 type, data; unsigned gi, ci; } event;

API ret nvmlEventSetCreate(event_set **out) { ENTER_GLOBAL(); *out = calloc(1, sizeof **out); return OK; }
API ret nvmlEventSetFree(event_set *set) {
  if (set->notices > 0) close(set->notices);
  free(set);
  return OK;
}
API ret nvmlDeviceGetSupportedEventTypes(device d, u64 *types) { ENTER(d); *types = (u64)read_value(d, "event_types", 0xb); return OK; }
API ret nvmlDeviceRegisterEvents(device d, u64 types, event_set *set) {
  (void)types;
  ENTER(d);
  set->registered[d->gpu] = 1;
  set->last[d->gpu] = read_value(d, "xid", 0);
  return OK;
}
/* Sleeps until something happened in the scenario's folder: a wait costs next to nothing, as it does in the driver. */
static void wait_for_change(event_set *set, const char *path, int at_most_ms) {
  if (!set->notices && path) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    set->notices = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (set->notices > 0) inotify_add_watch(set->notices, dirname(folder), IN_MOVED_TO | IN_CLOSE_WRITE);
    return; /* it may have changed before anybody watched */
  }
  struct pollfd one = {set->notices > 0 ? set->notices : -1, POLLIN, 0};
  char notices[4096];
  if (poll(&one, 1, one.fd < 0 && at_most_ms > 10 ? 10 : at_most_ms) > 0)
    while (read(one.fd, notices, sizeof notices) > 0) {}
}

API ret nvmlEventSetWait_v2(event_set *set, event *out, unsigned timeout_ms) {
  ENTER_GLOBAL();
  for (double until = now_s() + timeout_ms / 1e3;;) {
    struct stat st;
    const char *path = getenv("FAKE_NVML");
    int changed = path && stat(path, &st) == 0 &&
                  (st.st_ino != set->seen.st_ino || st.st_mtim.tv_nsec != set->seen.st_mtim.tv_nsec);
    if (changed) {
      ENTER_GLOBAL();
      set->seen = st;
    }
    for (int g = 0; changed && g < MAX_GPUS; g++) {
      double xid = set->registered[g] ? read_value(&gpus[g], "xid", 0) : 0;
      if (xid == 0 || xid == set->last[g]) continue;
      set->last[g] = xid;
      set->seen.st_ino = 0; /* another GPU may have one, too */
      *out = (event){&gpus[g], 8, (u64)xid, ~0u, ~0u}; /* nvmlEventTypeXidCriticalError */
      return OK;
    }
    double left = until - now_s();
    if (left <= 0) return TIMEOUT;
    wait_for_change(set, path, (int)(left * 1e3) + 1);
  }
}

/* --- GPM ------------------------------------------------------------------------------------------------------------- */

typedef struct { double taken; device d; } gpm_sample;
typedef struct { unsigned id; ret code; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, n; gpm_sample *first, *second; gpm_metric metrics[]; } gpm_get;

API ret nvmlGpmQueryDeviceSupport(device d, struct { unsigned version, supported; } *out) {
  ENTER(d);
  out->supported = (unsigned)read_value(d, "gpm_supported", 1);
  return OK;
}
API ret nvmlGpmSampleAlloc(gpm_sample **out) { ENTER_GLOBAL(); *out = calloc(1, sizeof **out); return OK; }
API ret nvmlGpmSampleFree(gpm_sample *sample) { free(sample); return OK; }
static ret take(device d, gpm_sample *out) {
  if (!out) return INVALID;
  if (!read_value(d, "gpm_supported", 1)) return NOT_SUPPORTED;
  *out = (gpm_sample){now_s(), d};
  return OK;
}
API ret nvmlGpmSampleGet(device d, gpm_sample *out) { ENTER(d); return migs_now(d) ? NOT_SUPPORTED : take(d, out); }
API ret nvmlGpmMigSampleGet(device d, unsigned gi, gpm_sample *out) {
  ENTER(d);
  for (int m = 0; m < migs_now(d); m++)
    if ((unsigned)read_value(&migs[d->gpu][m], "gi", m + 1) == gi) return take(&migs[d->gpu][m], out);
  return NOT_FOUND;
}
API ret nvmlGpmMetricsGet(gpm_get *get) {
  ENTER_GLOBAL();
  if (!get || get->version != 1 || !get->first || !get->second || get->second->taken <= get->first->taken) return INVALID;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < get->n; i++) {
    char key[32];
    snprintf(key, sizeof key, "gpmerr.%u", get->metrics[i].id);
    get->metrics[i].code = (ret)value_or(get->second->d, key, OK);
    snprintf(key, sizeof key, "gpm.%u", get->metrics[i].id);
    if (get->metrics[i].code == OK && !lookup(get->second->d, key, &get->metrics[i].value)) get->metrics[i].code = NOT_SUPPORTED;
  }
  pthread_mutex_unlock(&lock);
  return OK;
}
