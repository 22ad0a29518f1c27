# SPDX-License-Identifier: Apache-2.0
# cmake --install: public headers, the library, the programs, and what find_package(meshgrad) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/meshgrad)

# The programs find the library beside them, wherever the tree is moved.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(programs meshgrad_cli)
if(MESHGRAD_BENCH)
  list(APPEND programs meshgrad_bench)
endif()
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")

install(TARGETS meshgrad EXPORT meshgrad)
install(TARGETS ${programs})
foreach(folder IN LISTS folders)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshgrad/${folder}
    FILES_MATCHING PATTERN "*.h"
    PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "cli" EXCLUDE PATTERN "replay" EXCLUDE PATTERN "check.h" EXCLUDE PATTERN "gpu_tables.h" EXCLUDE
    PATTERN "gemm_tuning.h" EXCLUDE
    PATTERN "detail" EXCLUDE)
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/meshgradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/meshgradConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT meshgrad NAMESPACE meshgrad:: FILE meshgradTargets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/meshgradConfig.cmake ${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake
  DESTINATION ${package_dir})
# A static library leaves its packages to the program that links it.
if(NOT BUILD_SHARED_LIBS)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/StaticDependencies.cmake DESTINATION ${package_dir})
endif()
