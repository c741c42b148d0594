/* SPDX-License-Identifier: Apache-2.0 */
/* The wrong kernels, compiled for the executor. */
#include "register.h"

#include "broken.metal"

REGISTER_KERNEL(neighbour);
REGISTER_KERNEL(barrier_of_nothing);
REGISTER_KERNEL(past_the_end);
REGISTER_KERNEL(write_past_the_end);
REGISTER_KERNEL(before_the_start);
REGISTER_KERNEL(past_threadgroup_memory);
REGISTER_KERNEL(never_written);
REGISTER_KERNEL(same_word);
REGISTER_KERNEL(other_threadgroup);
REGISTER_KERNEL(write_to_input);
REGISTER_KERNEL(half_at_the_barrier);
REGISTER_KERNEL(two_barriers);
REGISTER_KERNEL(lonely_shuffle);
REGISTER_KERNEL(product_and_sum);
