# SPDX-License-Identifier: Apache-2.0
# One libFuzzer executable for each fuzz/fuzz_*.c, over an instrumented library. Seeds are in fuzz/corpus/NAME.

if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "TREEATTN_FUZZ needs clang (cmake --preset fuzz)")
endif()
if(NOT CMAKE_C_FLAGS MATCHES "fuzzer-no-link")
  message(FATAL_ERROR "TREEATTN_FUZZ needs -fsanitize=fuzzer-no-link in CMAKE_C_FLAGS (cmake --preset fuzz)")
endif()

file(GLOB ta_fuzzers CONFIGURE_DEPENDS fuzz/fuzz_*.c)
foreach(file ${ta_fuzzers})
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  if(TARGET ta_tool)
    target_link_libraries(${name} PRIVATE ta_tool)
  endif()
  target_link_libraries(${name} PRIVATE treeattn_static ta_flags m Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endforeach()
