# SPDX-License-Identifier: Apache-2.0
# One executable for each tests/test_*.c, with everything in tests/support/, registered with ctest.

include(TreeattnTestSupport)

# Libraries beside the one under test, by what a test includes.
set(ta_extra_bench_seed treeattn_seed)
set(ta_extra_tools_treeattn ta_tool)

file(GLOB ta_tests CONFIGURE_DEPENDS tests/test_*.c)
foreach(file ${ta_tests})
  get_filename_component(name ${file} NAME_WE)

  set(extra)
  set(missing)
  file(STRINGS ${file} lines REGEX "^#include \"(\\.\\./)?(bench/seed|tools/treeattn)/")
  foreach(line ${lines})
    string(REGEX MATCH "(bench|tools)/(seed|treeattn)" folder "${line}")
    string(REPLACE "/" "_" folder ${folder})
    list(APPEND extra ${ta_extra_${folder}})
    if(NOT TARGET ${ta_extra_${folder}})
      set(missing ${ta_extra_${folder}})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES extra)
  if(missing)
    # Not silently: ctest lists it as disabled and the test run counts it as skipped.
    message(STATUS "${name} is not built: ${missing} is not part of this build")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES DISABLED ON)
    continue()
  endif()

  add_executable(${name} ${file} tests/support/filter.c)
  if(TARGET ta_test_support)
    target_link_libraries(${name} PRIVATE ta_test_support)
  endif()
  target_link_libraries(${name} PRIVATE ${extra} ta_test_flags)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

  # A test that defines __wrap_NAME stands between the library and NAME: so it can fail each allocation once.
  file(STRINGS ${file} lines REGEX "__wrap_[a-z_]+\\(")
  set(wrapped)
  foreach(line ${lines})
    string(REGEX MATCH "__wrap_([a-z_]+)\\(" unused "${line}")
    list(APPEND wrapped ${CMAKE_MATCH_1})
  endforeach()
  list(REMOVE_DUPLICATES wrapped)
  foreach(function ${wrapped})
    target_link_options(${name} PRIVATE LINKER:--wrap=${function})
  endforeach()

  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endforeach()
