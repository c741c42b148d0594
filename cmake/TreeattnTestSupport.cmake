# SPDX-License-Identifier: Apache-2.0
# What every C test is compiled and linked with: cmocka, tests/support/ and the flags.
include_guard()

find_path(CMOCKA_INCLUDE_DIR cmocka.h)
find_library(CMOCKA_LIBRARY cmocka)
mark_as_advanced(CMOCKA_INCLUDE_DIR CMOCKA_LIBRARY)
if(NOT CMOCKA_INCLUDE_DIR OR NOT CMOCKA_LIBRARY)
  message(FATAL_ERROR "cmocka was not found (scripts/setup test installs it)")
endif()

add_library(ta_test_flags INTERFACE)
target_include_directories(ta_test_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_include_directories(ta_test_flags SYSTEM INTERFACE ${CMOCKA_INCLUDE_DIR})
# Oracles are never compiled harder than this: only the library has to be fast, and optimisers have faults of their own.
target_compile_options(ta_test_flags INTERFACE $<$<CONFIG:Release>:-O2>)
# Tests see the same internal switches as the sources, and where the repository is.
target_compile_definitions(ta_test_flags INTERFACE ${ta_definitions} TA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(ta_test_flags INTERFACE ta_flags treeattn_static ${CMOCKA_LIBRARY} m Threads::Threads)

file(GLOB ta_support_sources CONFIGURE_DEPENDS tests/support/*.c)
list(FILTER ta_support_sources EXCLUDE REGEX "/filter\\.c$")
if(ta_support_sources)
  add_library(ta_test_support STATIC ${ta_support_sources})
  target_link_libraries(ta_test_support PRIVATE ta_test_flags)
endif()
