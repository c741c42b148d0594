# SPDX-License-Identifier: Apache-2.0
# The generator, which runs a real language model on top of the library. Needs ggml: an installed copy that CMake finds, or the one
# that `scripts/fetch-model ggml` puts into build/models.

option(TREEATTN_BUILD_GENERATE "Build treeattn-generate (needs ggml, jansson and libzip)" OFF)
if(NOT TREEATTN_BUILD_GENERATE)
  return()
endif()
if(NOT TARGET ta_tool)
  message(FATAL_ERROR "TREEATTN_BUILD_GENERATE needs TREEATTN_BUILD_CLI: the generator shares its readers and options")
endif()

set(TREEATTN_MODELS "${PROJECT_SOURCE_DIR}/build/models" CACHE PATH "Where scripts/fetch-model puts models and ggml")
find_path(GGML_INCLUDE_DIR ggml.h HINTS "${TREEATTN_MODELS}/ggml-0.20.2/include")
# The parts by name: ggml's CMake package asks for a C++ compiler and a BLAS that nothing here uses.
find_library(GGML_BASE_LIBRARY ggml-base HINTS "${TREEATTN_MODELS}/ggml-0.20.2/lib64")
find_library(GGML_CPU_LIBRARY ggml-cpu HINTS "${TREEATTN_MODELS}/ggml-0.20.2/lib64")
mark_as_advanced(GGML_INCLUDE_DIR GGML_BASE_LIBRARY GGML_CPU_LIBRARY)
if(NOT GGML_INCLUDE_DIR OR NOT GGML_BASE_LIBRARY OR NOT GGML_CPU_LIBRARY)
  message(FATAL_ERROR "ggml was not found; `scripts/fetch-model ggml` fetches it (TREEATTN_MODELS is ${TREEATTN_MODELS})")
endif()

file(GLOB ta_generate_sources CONFIGURE_DEPENDS examples/generate/*.c)
list(FILTER ta_generate_sources EXCLUDE REGEX "/main\\.c$")
add_library(ta_generate STATIC ${ta_generate_sources})
target_include_directories(ta_generate PUBLIC ${PROJECT_SOURCE_DIR}/examples/generate)
target_include_directories(ta_generate SYSTEM PUBLIC ${GGML_INCLUDE_DIR})
target_link_libraries(ta_generate PUBLIC ta_tool treeattn ${GGML_CPU_LIBRARY} ${GGML_BASE_LIBRARY} m PRIVATE ta_flags)

add_executable(treeattn-generate examples/generate/main.c)
target_link_libraries(treeattn-generate PRIVATE ta_generate ta_flags)

# `treeattn generate`, where the command line's table has a place for it.
if(TARGET treeattn_cli)
  target_compile_definitions(treeattn_cli PRIVATE TREEATTN_WITH_GENERATE=1)
  target_link_libraries(treeattn_cli PRIVATE ta_generate)
endif()

add_executable(treeattn-generate-check tests/generate/check_model.c tests/generate/check_log.c)
target_link_libraries(treeattn-generate-check PRIVATE ta_generate ta_flags)
add_executable(treeattn-generate-law tests/generate/check_law.c)
target_link_libraries(treeattn-generate-law PRIVATE ta_generate ta_flags)
add_executable(treeattn-generate-tokens tests/generate/print_tokens.c)
target_link_libraries(treeattn-generate-tokens PRIVATE ta_generate ta_flags)

if(TREEATTN_BUILD_TESTS)
  file(GLOB ta_generate_tests CONFIGURE_DEPENDS tests/generate/test_*.c)
  foreach(file ${ta_generate_tests})
    get_filename_component(name ${file} NAME_WE)
    add_executable(${name} ${file} tests/generate/tiny_model.c)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/generate)
    target_include_directories(${name} SYSTEM PRIVATE ${CMOCKA_INCLUDE_DIR})
    target_link_libraries(${name} PRIVATE ta_generate ta_flags ${CMOCKA_LIBRARY})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 900)
  endforeach()
endif()

if(TREEATTN_FUZZ)
  add_executable(fuzz_model tests/generate/fuzz_model.c tests/generate/tiny_model.c)
  target_link_libraries(fuzz_model PRIVATE ta_generate ta_flags)
  target_link_options(fuzz_model PRIVATE -fsanitize=fuzzer)
endif()
