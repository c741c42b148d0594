# SPDX-License-Identifier: Apache-2.0
# The CUDA back end: with TREEATTN_CUDA its sources and the runtime that they need, without it the functions that say so.

set(ta_cuda_objects)
if(NOT TREEATTN_CUDA)
  file(GLOB ta_cuda_absent CONFIGURE_DEPENDS src/cuda/*absent.c)
  list(APPEND ta_sources ${ta_cuda_absent})
  return()
endif()

# Which code is made is said file by file below: CMake's own list knows no such difference.
set(CMAKE_CUDA_ARCHITECTURES OFF)
# CMake looks for nvcc in PATH and $CUDACXX alone.
find_program(TREEATTN_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
mark_as_advanced(TREEATTN_NVCC)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND TREEATTN_NVCC)
  set(CMAKE_CUDA_COMPILER ${TREEATTN_NVCC})
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.3)
  message(FATAL_ERROR "TREEATTN_CUDA needs nvcc 12.3 or later, this is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
find_package(CUDAToolkit REQUIRED)

# The static runtime loads the driver when it is first asked, so that programs start on machines without one.
set(ta_cuda_libraries CUDA::cudart_static)
get_filename_component(ta_cuda_runtime_dir ${CUDA_cudart_static_LIBRARY} DIRECTORY)

file(GLOB ta_cuda_c CONFIGURE_DEPENDS src/cuda/*.c)
list(FILTER ta_cuda_c EXCLUDE REGEX "absent\\.c$")
file(GLOB ta_cuda_cu CONFIGURE_DEPENDS src/cuda/*.cu)
list(APPEND ta_sources ${ta_cuda_c})

# Machine code for the two that are measured or common, and PTX from which drivers make the rest. Hopper's own instructions exist
# in code for 9.0a alone, and so do the kernels that are written in them.
set(TREEATTN_CUDA_ARCHITECTURES "80-real;90a-real;80-virtual" CACHE STRING "What the CUDA back end is compiled for")
set(ta_cuda_arch_all)
foreach(entry ${TREEATTN_CUDA_ARCHITECTURES})
  string(REGEX MATCH "^[0-9]+a?" number ${entry})
  if(entry MATCHES "-virtual$")
    list(APPEND ta_cuda_arch_all "SHELL:-gencode arch=compute_${number},code=compute_${number}")
  else()
    list(APPEND ta_cuda_arch_all "SHELL:-gencode arch=compute_${number},code=sm_${number}")
  endif()
endforeach()
set(ta_cuda_arch_sm90 "SHELL:-gencode arch=compute_90a,code=sm_90a")

# Fused operations stand in the source where they are meant. A spill or local memory is a fault of the kernel that has it; the
# wgmma kernels, whose accumulators leave few registers, still have some (docs/performance.md), so that
# for them it is a warning.
add_library(ta_cuda_flags INTERFACE)
target_compile_options(ta_cuda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xcompiler=-ffp-contract=off,-Wall,-Wextra
  -Xptxas=-warn-spills,-warn-lmem-usage>)
if(TREEATTN_WERROR)
  target_compile_options(ta_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=cross-execution-space-call,reorder>)
endif()

set(ta_cuda_sm90 ${ta_cuda_cu})
list(FILTER ta_cuda_sm90 INCLUDE REGEX "_sm90[^/]*\\.cu$")
set(ta_cuda_all ${ta_cuda_cu})
list(FILTER ta_cuda_all EXCLUDE REGEX "_sm90[^/]*\\.cu$")
foreach(kind all sm90)
  if(NOT ta_cuda_${kind})
    continue()
  endif()
  set(target ta_cuda_objects_${kind})
  add_library(${target} OBJECT ${ta_cuda_${kind}})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE ${ta_cuda_arch_${kind}})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE TREEATTN_BUILDING)
  target_link_libraries(${target} PRIVATE ta_cuda_flags)
  # Users link with a C compiler: the host side of these files is C in all but name and must not ask for a C++ runtime.
  target_compile_options(${target} PRIVATE -Xcompiler=-fno-threadsafe-statics,-fno-exceptions,-fno-rtti)
  if(TREEATTN_WERROR AND kind STREQUAL "all")
    target_compile_options(${target} PRIVATE -Xptxas=-Werror -Werror=all-warnings)
  endif()
  list(APPEND ta_cuda_objects $<TARGET_OBJECTS:${target}>)
endforeach()
