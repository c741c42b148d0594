/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatches: binding arguments, and the lanes of a threadgroup as fibers. */
#undef _FORTIFY_SOURCE /* it would take a jump to another stack for an accident */
#include "executor.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>

#include "lane.h"
#include "memory.h"

namespace emulator {
namespace {

constexpr size_t simd_width = 32;
constexpr size_t stack_bytes = 128 * 1024;

enum class lane_state { ready, at_barrier, at_shuffle, done };

struct lane_record {
  lane_state state;
  ucontext_t start;
  bool started;
  jmp_buf here; /* where a started lane goes on */
  unsigned char *stack;
  size_t barrier; /* where it waits: an index of barriers */
  bool memory;
  float given, taken;
  unsigned mask;
};

std::map<std::string, entry> &kernels() {
  static std::map<std::string, entry> all;
  return all;
}

std::map<std::string, uint32_t *> &constants() {
  static std::map<std::string, uint32_t *> all;
  return all;
}

std::vector<lane_record> lanes;
size_t current; /* lane */
jmp_buf scheduler;
const entry *running;
std::vector<const void *> values; /* of all lanes, one after another */
uint64_t order_state = 1;
struct barrier_place {
  const char *file;
  int line;
  std::string name;
  bool dropped;
};
std::vector<barrier_place> barriers; /* that lanes have come to, of all kernels */
std::string dropped;

uint64_t next_random() {
  uint64_t x = (order_state += UINT64_C(0x9e3779b97f4a7c15));
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

template <class T> void shuffle(std::vector<T> &items) {
  for (size_t i = items.size(); i > 1; i--) {
    std::swap(items[i - 1], items[next_random() % i]);
  }
}

/* Contexts of the system make a call for the signal mask at every switch; they only start the lanes. */
void run_lane() {
  running->call(running->function, values.data() + current * running->parameters.size());
  lanes[current].state = lane_state::done;
  _longjmp(scheduler, 1);
}

void wait_as(lane_state state) {
  lane_record &lane = lanes[current];
  lane.state = state;
  if (_setjmp(lane.here) == 0) {
    _longjmp(scheduler, 1);
  }
}

/* Runs the current lane until it waits or ends. */
void resume_lane() {
  lane_record &lane = lanes[current];
  if (_setjmp(scheduler) != 0) {
    return;
  }
  if (lane.started) {
    _longjmp(lane.here, 1);
  }
  lane.started = true;
  setcontext(&lane.start);
}

void start_lanes(size_t count) {
  while (lanes.size() < count) {
    lane_record lane = {};
    lane.stack = static_cast<unsigned char *>(std::malloc(stack_bytes));
    lanes.push_back(lane);
  }
  for (size_t n = 0; n < count; n++) {
    getcontext(&lanes[n].start);
    lanes[n].start.uc_stack.ss_sp = lanes[n].stack;
    lanes[n].start.uc_stack.ss_size = stack_bytes;
    lanes[n].start.uc_link = nullptr;
    makecontext(&lanes[n].start, run_lane, 0);
    lanes[n].started = false;
    lanes[n].state = lane_state::ready;
  }
}

/* Gives what a simdgroup's lanes exchange, once all of them are there. */
bool exchange(size_t first, size_t count) {
  for (size_t n = first; n < first + count; n++) {
    if (lanes[n].state != lane_state::at_shuffle || lanes[n].mask != lanes[first].mask) {
      return false;
    }
  }
  for (size_t n = first; n < first + count; n++) {
    lanes[n].taken = lanes[first + ((n - first) ^ lanes[n].mask) % count].given;
    lanes[n].state = lane_state::ready;
  }
  return true;
}

bool release_barrier(size_t count) {
  for (size_t n = 0; n < count; n++) {
    if (lanes[n].state != lane_state::at_barrier || lanes[n].barrier != lanes[0].barrier) {
      return false;
    }
  }
  if (lanes[0].memory) {
    memory_barrier();
  }
  for (size_t n = 0; n < count; n++) {
    lanes[n].state = lane_state::ready;
  }
  return true;
}

std::string describe(size_t lane) {
  switch (lanes[lane].state) {
    case lane_state::at_barrier: return "waits at " + barriers[lanes[lane].barrier].name;
    case lane_state::at_shuffle: return "waits for its simdgroup";
    case lane_state::done: return "has ended";
    case lane_state::ready: break;
  }
  return "runs";
}

/* One threadgroup from start to end. */
void run_threadgroup(size_t count) {
  std::vector<size_t> order(count);
  for (size_t n = 0; n < count; n++) {
    order[n] = n;
  }
  start_lanes(count);
  for (;;) {
    shuffle(order);
    bool any = false, all_done = true;
    for (size_t n : order) {
      if (lanes[n].state == lane_state::ready) {
        any = true;
        current = n;
        memory_lane(n, lanes[n].stack, stack_bytes);
        resume_lane();
        if (!memory_report().empty()) {
          return; /* the fibers are left where they are */
        }
      }
      all_done = all_done && lanes[n].state == lane_state::done;
    }
    for (size_t n = 0; n < count; n += simd_width) {
      any = exchange(n, std::min(simd_width, count - n)) || any;
    }
    any = release_barrier(count) || any;
    if (all_done) {
      return;
    }
    if (!any) {
      for (size_t n = 1; n < count; n++) {
        if (describe(n) != describe(0)) {
          memory_fail("divergence: lane 0 " + describe(0) + ", lane " + std::to_string(n) + " " + describe(n));
          return;
        }
      }
      memory_fail("divergence: every lane " + describe(0));
      return;
    }
  }
}

/* Addresses of the values of a kernel's arguments, for every lane. The storage behind them is filled here. */
struct storage {
  std::vector<void *> pointers;
  uint32_t place[3];
  std::vector<uint32_t> indices;
};

std::string bind(const launch &l, storage *s) {
  const std::vector<parameter> &parameters = running->parameters;
  if (parameters.size() != l.arguments.size()) {
    return "argument: the source declares " + std::to_string(l.arguments.size()) + " arguments, the compiled kernel " +
           std::to_string(parameters.size());
  }
  const size_t count = parameters.size();
  s->pointers.assign(count, nullptr);
  s->indices.resize(l.lanes);
  values.assign(count * l.lanes, nullptr);
  for (size_t a = 0; a < count; a++) {
    const argument &declared = l.arguments[a];
    const std::string name = declared.attribute;
    bool fits = false;
    if (name.compare(0, 7, "buffer(") == 0) {
      const auto found = l.buffers.find(declared.index);
      fits = found != l.buffers.end() && parameters[a].pointer;
      if (fits) {
        s->pointers[a] = found->second.data + found->second.offset;
        memory_bind(declared.index, found->second.data, found->second.bytes, found->second.offset,
                    parameters[a].writable);
      }
    } else if (name.compare(0, 12, "threadgroup(") == 0) {
      const auto found = l.threadgroup_bytes.find(declared.index);
      fits = found != l.threadgroup_bytes.end() && parameters[a].pointer;
      s->pointers[a] = fits ? memory_threadgroup(found->second) : nullptr;
    } else if (name == "threadgroup_position_in_grid") {
      fits = !parameters[a].pointer && parameters[a].bytes >= 8;
    } else if (name == "thread_index_in_threadgroup") {
      fits = !parameters[a].pointer && parameters[a].bytes == 4;
    }
    if (!fits) {
      return "argument: " + l.kernel + " declares " + name + ", which is not bound or not of that type";
    }
    for (size_t n = 0; n < l.lanes; n++) {
      s->indices[n] = uint32_t(n);
      values[n * count + a] = name == "threadgroup_position_in_grid"  ? static_cast<const void *>(s->place)
                              : name == "thread_index_in_threadgroup" ? static_cast<const void *>(&s->indices[n])
                                                                      : static_cast<const void *>(&s->pointers[a]);
    }
  }
  return "";
}

} // namespace

void barrier(bool memory, const char *file, int line) {
  size_t n = 0;
  while (n < barriers.size() && (barriers[n].file != file || barriers[n].line != line)) {
    n++;
  }
  if (n == barriers.size()) {
    const std::string path = file, name = path.substr(path.rfind('/') + 1) + ":" + std::to_string(line);
    barriers.push_back({file, line, name, name == dropped});
  }
  if (barriers[n].dropped) {
    return;
  }
  lanes[current].barrier = n;
  lanes[current].memory = memory;
  wait_as(lane_state::at_barrier);
}

float shuffle_xor(float value, unsigned mask) {
  lanes[current].given = value;
  lanes[current].mask = mask;
  wait_as(lane_state::at_shuffle);
  return lanes[current].taken;
}

void leave_lane() {
  _longjmp(scheduler, 1);
}

std::string run(const launch &l) {
  const auto found = kernels().find(l.kernel);
  if (found == kernels().end()) {
    return "argument: no compiled kernel is called " + l.kernel;
  }
  running = &found->second;
  for (const auto &c : l.constants) {
    if (constants().count(c.first) == 0) {
      return "argument: no function constant is called " + c.first;
    }
    *constants()[c.first] = c.second;
  }
  memory_begin(l.kernel);
  storage s;
  const std::string wrong = bind(l, &s);
  if (!wrong.empty()) {
    memory_end();
    return wrong;
  }
  std::vector<uint64_t> groups(size_t(l.grid[0]) * l.grid[1] * l.grid[2]);
  for (size_t n = 0; n < groups.size(); n++) {
    groups[n] = n;
  }
  shuffle(groups);
  for (uint64_t n : groups) {
    s.place[0] = uint32_t(n % l.grid[0]);
    s.place[1] = uint32_t(n / l.grid[0] % l.grid[1]);
    s.place[2] = uint32_t(n / l.grid[0] / l.grid[1]);
    memory_begin_threadgroup(s.place);
    run_threadgroup(l.lanes);
    if (!memory_report().empty()) {
      break;
    }
  }
  return memory_end();
}

void shuffle_order(uint64_t seed) {
  order_state = seed;
}

std::vector<std::string> barriers_passed() {
  std::vector<std::string> names;
  for (const barrier_place &b : barriers) {
    if (std::find(names.begin(), names.end(), b.name) == names.end()) {
      names.push_back(b.name);
    }
  }
  return names;
}

void drop_barrier(const std::string &place) {
  dropped = place;
  for (barrier_place &b : barriers) {
    b.dropped = b.name == place;
  }
}

void add_kernel(const char *name, const entry &e) {
  kernels()[name] = e;
}

bool has_kernel(const std::string &name) {
  return kernels().count(name) != 0;
}

void add_constant(const char *name, uint32_t *variable) {
  constants()[name] = variable;
}

} // namespace emulator
