# SPDX-License-Identifier: Apache-2.0
# The compiler flags of every target, and the instruction sets that this target machine's family has.

# Same bits on every machine: an expression is never contracted into a fused multiply-add behind our back, and no fast-math.
add_library(ta_flags INTERFACE)
target_compile_options(ta_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                       -Werror=implicit-function-declaration)
if(TREEATTN_WERROR)
  target_compile_options(ta_flags INTERFACE -Werror)
endif()

if("${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_RELEASE}" MATCHES "-ffast-math|-Ofast|-funsafe-math-optimizations")
  message(FATAL_ERROR "fast-math breaks the promise of one answer on every machine; remove it from CMAKE_C_FLAGS")
endif()

check_c_source_compiles("#ifndef __x86_64__\n#error no\n#endif\nint main(void) { return 0; }" TA_TARGET_X86_64)
check_c_source_compiles("#ifndef __aarch64__\n#error no\n#endif\nint main(void) { return 0; }" TA_TARGET_AARCH64)

# Only the files of an instruction set are compiled for it; everything else runs on the oldest machine of the family.
set(TA_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(TA_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mavx2)
