/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs kernels written in Metal's language: threadgroup after threadgroup, the lanes of each in turn from barrier to
 * barrier, both in an order that a seed shuffles. Kernels are compiled with the thread sanitizer's instrumentation,
 * whose calls end here instead of in its library, so that every access of every lane is seen. The first of these ends
 * the dispatch with a report:
 *
 *   bounds          an access outside every bound buffer, the threadgroup's memory and the lane's own stack
 *   constant        a write to a buffer that the kernel declares constant
 *   race            two lanes, one of them writing, at the same word of threadgroup memory without a barrier between
 *                   them; of device memory, two lanes, threadgroups or dispatches, after the first has written it
 *   uninitialized   a read of threadgroup memory that its threadgroup has not written
 *   divergence      lanes that wait at different barriers, or have ended while others wait
 *   argument        a declared argument that is not bound, or not of the size that its attribute has
 *
 * Words have 4 bytes. Lanes of a simdgroup get no order but through barriers.
 */
#ifndef EMULATOR_EXECUTOR_H
#define EMULATOR_EXECUTOR_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulator {

/* An argument as the kernel's source declares it: what stands in [[ ]], for example buffer(3) or
 * thread_index_in_threadgroup, and the number in it or -1. */
struct argument {
  std::string attribute;
  int index;
};

struct bound_buffer {
  unsigned char *data; /* all of it */
  size_t bytes;
  size_t offset; /* where the kernel's pointer points to */
};

struct launch {
  std::string kernel;
  std::vector<argument> arguments;
  std::map<std::string, uint32_t> constants; /* function constants by name */
  std::map<int, bound_buffer> buffers;
  std::map<int, size_t> threadgroup_bytes;
  uint32_t grid[3];
  uint32_t lanes;
};

/* "" or the first report. */
std::string run(const launch &l);
/* Orders what was accessed before against what comes after; belongs between dispatches. */
void device_barrier();

/* Bytes that lanes read from each buffer of a kernel so far, "treeattn_attend 3" for its buffer 3. */
std::map<std::string, uint64_t> &bytes_read();
/* Orders lanes and threadgroups of all later dispatches. */
void shuffle_order(uint64_t seed);
/* "file.metal:12" for each barrier that any lane has passed. */
std::vector<std::string> barriers_passed();
/* This barrier does nothing from now on, so that tests can see it missed. "": none. */
void drop_barrier(const std::string &place);

/* ---- how kernels are made known; register.h does it ---- */

struct parameter {
  bool pointer, writable; /* pointers and references */
  size_t bytes;           /* of a value */
};
struct entry {
  void (*function)();
  void (*call)(void (*function)(), const void *const *values); /* values by address */
  std::vector<parameter> parameters;
};
void add_kernel(const char *name, const entry &e);
bool has_kernel(const std::string &name);
void add_constant(const char *name, uint32_t *variable);

} // namespace emulator

#endif
