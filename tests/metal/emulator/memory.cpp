/* SPDX-License-Identifier: Apache-2.0 */
/* Every access of a lane: whether it may be, and whether it races. */
#include "memory.h"

#include <cstring>
#include <map>
#include <vector>

#include "executor.h"

extern "C" const char __executable_start[], _end[];

namespace emulator {
namespace {

constexpr uint32_t nobody = 0, many = UINT32_MAX;

/* Who accessed a word. A party is a lane of a threadgroup, numbered from 1 on over everything since the last device
 * barrier; for threadgroup memory a lane since the last barrier. */
struct word {
  uint32_t writer, reader;
};

/* The words of device memory, in pages that appear when they are first touched: buffers may be huge. */
class device_shadow {
public:
  word &operator[](size_t n) {
    const size_t number = n / page_words;
    if (page == nullptr || number != page_number) {
      std::vector<word> &found = pages[number];
      found.resize(page_words, {nobody, nobody});
      page = &found;
      page_number = number;
    }
    return (*page)[n % page_words];
  }

private:
  static constexpr size_t page_words = 1024;
  std::map<size_t, std::vector<word>> pages;
  std::vector<word> *page = nullptr;
  size_t page_number = 0;
};

struct buffer {
  int index;
  const unsigned char *data;
  size_t bytes, offset;
  bool writable;
  device_shadow *words; /* nullptr: nobody has written to it since the last device barrier */
  uint64_t read;
};

std::string kernel_name, report;
bool active;
std::vector<buffer> buffers;
std::map<const unsigned char *, device_shadow> device_words;
std::vector<unsigned char> group_memory;
unsigned char *group_data;
size_t group_bytes;
std::vector<word> group_words;
std::vector<unsigned char> group_written; /* by word */
uint32_t next_party = 1, group_party;     /* of the first lane of a threadgroup */
uint32_t place[3];
uint32_t lane_number;
const unsigned char *stack_begin, *stack_end;

std::string who() {
  return kernel_name + ", threadgroup (" + std::to_string(place[0]) + ", " + std::to_string(place[1]) + ", " +
         std::to_string(place[2]) + "), lane " + std::to_string(lane_number);
}

void stop(const std::string &text) {
  memory_fail(text);
  leave_lane();
}

void stop_access(const char *kind, const char *verb, size_t size, const std::string &where) {
  stop(std::string(kind) + ": " + who() + " " + verb + " " + std::to_string(size) + " bytes " + where);
}

/* Looks at the words of an access and remembers it. Returns false where it races. */
template <class Words> bool touch(Words &words, size_t offset, size_t size, bool write, uint32_t party) {
  bool fine = true;
  for (size_t n = offset / 4; n <= (offset + size - 1) / 4; n++) {
    word &w = words[n];
    fine = fine && (w.writer == nobody || w.writer == party);
    if (write) {
      fine = fine && (w.reader == nobody || w.reader == party);
      w.writer = party;
    } else {
      w.reader = w.reader == nobody || w.reader == party ? party : many;
    }
  }
  return fine;
}

void access_group(size_t offset, size_t size, bool write) {
  const char *verb = write ? "writes" : "reads";
  const auto where = [&] { return "at threadgroup memory + " + std::to_string(offset); };
  if (offset + size > group_bytes) {
    stop_access("bounds", verb, size, where() + " of " + std::to_string(group_bytes));
  }
  for (size_t n = offset / 4; n <= (offset + size - 1) / 4; n++) {
    if (!write && group_written[n] == 0) {
      stop_access("uninitialized", verb, size, where());
    }
    group_written[n] = 1;
  }
  if (!touch(group_words, offset, size, write, 1 + lane_number)) {
    stop_access("race", verb, size, where() + ", which another lane accessed after the last barrier");
  }
}

void access_buffer(buffer &b, size_t offset, size_t size, bool write) {
  const char *verb = write ? "writes" : "reads";
  const auto where = [&] { return "at byte " + std::to_string(offset) + " of buffer " + std::to_string(b.index); };
  if (offset + size > b.bytes) {
    stop_access("bounds", verb, size, where() + ", which has " + std::to_string(b.bytes));
  }
  if (write && !b.writable) {
    stop_access("constant", verb, size, where());
  }
  b.read += write ? 0 : size;
  if (b.words != nullptr && !touch(*b.words, offset, size, write, group_party + lane_number)) {
    stop_access("race", verb, size, where() + ", which another lane accessed without a barrier in between");
  }
}

void access(const void *address, size_t size, bool write) {
  if (!active) {
    return;
  }
  const unsigned char *at = static_cast<const unsigned char *>(address);
  if (at >= stack_begin && at < stack_end) {
    return;
  }
  if (at >= group_data && at < group_data + group_bytes) {
    access_group(size_t(at - group_data), size, write);
    return;
  }
  buffer *found = nullptr; /* of two arguments in one buffer, the one that begins last before the access */
  for (buffer &b : buffers) {
    if (at >= b.data && at < b.data + b.bytes &&
        (found == nullptr || (b.offset > found->offset && at >= b.data + b.offset))) {
      found = &b;
    }
  }
  if (found != nullptr) {
    access_buffer(*found, size_t(at - found->data), size, write);
    return;
  }
  if (!write && at >= reinterpret_cast<const unsigned char *>(__executable_start) &&
      at < reinterpret_cast<const unsigned char *>(_end)) {
    return; /* function constants and tables of the program */
  }
  stop_access("bounds", write ? "writes" : "reads", size, "outside all memory that it was given");
}

} // namespace

void memory_begin(const std::string &kernel) {
  kernel_name = kernel;
  report.clear();
  buffers.clear();
  group_data = nullptr;
  group_bytes = 0;
  place[0] = place[1] = place[2] = 0;
  lane_number = 0;
}

std::string memory_end() {
  active = false;
  for (const buffer &b : buffers) {
    bytes_read()[kernel_name + " " + std::to_string(b.index)] += b.read;
  }
  return report;
}

void memory_bind(int index, unsigned char *data, size_t bytes, size_t offset, bool writable) {
  const auto known = device_words.find(data);
  device_shadow *words = known == device_words.end() ? nullptr : &known->second;
  if (writable) {
    words = &device_words[data];
    for (buffer &b : buffers) {
      b.words = b.data == data ? words : b.words;
    }
  }
  buffers.push_back({index, data, bytes, offset, writable, words, 0});
}

void *memory_threadgroup(size_t bytes) {
  group_memory.assign(bytes + 64, 0);
  group_bytes = bytes;
  group_data = group_memory.data() + (64 - reinterpret_cast<uintptr_t>(group_memory.data()) % 64) % 64;
  return group_data;
}

void memory_begin_threadgroup(const uint32_t new_place[3]) {
  std::memcpy(place, new_place, sizeof place);
  group_words.assign(group_bytes / 4 + 1, {nobody, nobody});
  group_written.assign(group_bytes / 4 + 1, 0);
  if (group_bytes > 0) {
    std::memset(group_data, 0xff, group_bytes);
  }
  group_party = next_party;
  next_party += 1024;
}

void memory_lane(size_t lane, const unsigned char *stack, size_t stack_bytes) {
  active = true;
  lane_number = uint32_t(lane);
  stack_begin = stack;
  stack_end = stack + stack_bytes;
}

/* What was accessed before is there for all. */
void memory_barrier() {
  group_words.assign(group_words.size(), {nobody, nobody});
}

const std::string &memory_report() {
  return report;
}

void memory_fail(const std::string &text) {
  active = false;
  report = report.empty() ? text : report;
}

void device_barrier() {
  device_words.clear();
  next_party = 1;
}

std::map<std::string, uint64_t> &bytes_read() {
  static std::map<std::string, uint64_t> all;
  return all;
}

} // namespace emulator

/* ---- what the compiler calls ---- */

extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_read_range(void *, size_t);
void __tsan_write_range(void *, size_t);

void __tsan_init(void) {
}
void __tsan_func_entry(void *) {
}
void __tsan_func_exit(void) {
}
void __tsan_read_range(void *address, size_t size) {
  emulator::access(address, size, false);
}
void __tsan_write_range(void *address, size_t size) {
  emulator::access(address, size, true);
}

#define ACCESSES(size)                               \
  void __tsan_read##size(void *address);             \
  void __tsan_write##size(void *address);            \
  void __tsan_unaligned_read##size(void *address);   \
  void __tsan_unaligned_write##size(void *address);  \
  void __tsan_read##size(void *address) {            \
    emulator::access(address, size, false);          \
  }                                                  \
  void __tsan_write##size(void *address) {           \
    emulator::access(address, size, true);           \
  }                                                  \
  void __tsan_unaligned_read##size(void *address) {  \
    emulator::access(address, size, false);          \
  }                                                  \
  void __tsan_unaligned_write##size(void *address) { \
    emulator::access(address, size, true);           \
  }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
}
