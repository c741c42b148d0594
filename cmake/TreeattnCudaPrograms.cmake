# SPDX-License-Identifier: Apache-2.0
# Programs for the CUDA back end: its measurements, and one test for each tests/cuda/test_*.c. Without a GPU those that need one say so
# and skip.

if(NOT TREEATTN_CUDA)
  return()
endif()

# Everything that runs on a GPU.
add_custom_target(cuda-programs)
if(TREEATTN_BUILD_BENCH)
  file(GLOB ta_cuda_bench CONFIGURE_DEPENDS bench/cuda/*.cu)
  add_executable(treeattn-cuda-bench ${ta_cuda_bench})
  target_compile_options(treeattn-cuda-bench PRIVATE ${ta_cuda_arch_all})
  target_link_libraries(treeattn-cuda-bench PRIVATE treeattn_static ta_cuda_flags ${ta_cuda_libraries})
  add_dependencies(cuda-programs treeattn-cuda-bench)
endif()
if(NOT TREEATTN_BUILD_TESTS)
  return()
endif()

add_library(ta_cuda_test_support STATIC tests/cuda/support.c)
target_link_libraries(ta_cuda_test_support PUBLIC ta_test_support ta_test_flags ${ta_cuda_libraries})

file(GLOB ta_cuda_tests CONFIGURE_DEPENDS tests/cuda/test_*.c)
foreach(file ${ta_cuda_tests})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file} tests/support/filter.c)
  target_link_libraries(${name} PRIVATE ta_cuda_test_support)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests
                                           LINKER_LANGUAGE C)
  add_dependencies(cuda-programs ${name})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS cuda)
endforeach()
