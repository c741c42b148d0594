/* SPDX-License-Identifier: Apache-2.0 */
/* What a running lane asks of the executor. */
#ifndef EMULATOR_LANE_H
#define EMULATOR_LANE_H

namespace emulator {

/* Waits for every lane of the threadgroup. Without `memory`, lanes meet and nothing is ordered. */
void barrier(bool memory, const char *file, int line);
/* The value that the lane `mask` away in the simdgroup gives to the same call. */
float shuffle_xor(float value, unsigned mask);

} // namespace emulator

#endif
