/* SPDX-License-Identifier: Apache-2.0 */
/* What lanes may access and who accessed it, between the executor and the instrumented accesses. */
#ifndef EMULATOR_MEMORY_H
#define EMULATOR_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

void memory_begin(const std::string &kernel);
/* Returns the report and ends the dispatch: accesses are no longer looked at. */
std::string memory_end();

void memory_bind(int index, unsigned char *data, size_t bytes, size_t offset, bool writable);
void *memory_threadgroup(size_t bytes);

void memory_begin_threadgroup(const uint32_t place[3]);
void memory_lane(size_t lane, const unsigned char *stack, size_t stack_bytes);
void memory_barrier();

const std::string &memory_report();
void memory_fail(const std::string &report);

/* The executor's: switches away from a lane for good. */
void leave_lane();

} // namespace emulator

#endif
