# SPDX-License-Identifier: Apache-2.0
# What an installation holds: headers, both libraries, the CMake package, the pkg-config file and the command line.

set(ta_absent_headers)
if(NOT APPLE OR NOT TREEATTN_METAL)
  set(ta_absent_headers PATTERN treeattn_metal.h EXCLUDE)
endif()
install(DIRECTORY include/treeattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" ${ta_absent_headers})
install(TARGETS treeattn treeattn_static EXPORT treeattn-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET treeattn_cli)
  install(TARGETS treeattn_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(ta_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/treeattn)
install(EXPORT treeattn-targets NAMESPACE treeattn:: DESTINATION ${ta_package_dir})
configure_package_config_file(cmake/treeattn-config.cmake.in treeattn-config.cmake INSTALL_DESTINATION ${ta_package_dir})
set(ta_compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(ta_compatibility SameMinorVersion)
endif()
write_basic_package_version_file(treeattn-config-version.cmake COMPATIBILITY ${ta_compatibility})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/treeattn-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/treeattn-config-version.cmake
        DESTINATION ${ta_package_dir})

# The prefix is found from where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH ta_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" ta_pc_to_prefix "${ta_pc_to_prefix}")
set(ta_pc_private "-lm -pthread")
if(TA_POOL_FOUND)
  string(PREPEND ta_pc_private "-lpthreadpool ")
endif()
if(TREEATTN_CUDA)
  string(APPEND ta_pc_private " -L${ta_cuda_runtime_dir} -lcudart_static -ldl -lrt")
endif()
if(APPLE AND TREEATTN_METAL)
  string(APPEND ta_pc_private " -framework Metal -framework Foundation")
endif()
configure_file(cmake/treeattn.pc.in treeattn.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/treeattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
