# SPDX-License-Identifier: Apache-2.0
# xxHash::xxhash; distributions have no CMake package of it.
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)
if(xxHash_INCLUDE_DIR)
  file(STRINGS ${xxHash_INCLUDE_DIR}/xxhash.h xxHash_VERSION REGEX "define XXH_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]")
  list(TRANSFORM xxHash_VERSION REPLACE ".* ([0-9]+).*" "\\1")
  list(JOIN xxHash_VERSION "." xxHash_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR VERSION_VAR xxHash_VERSION)
if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES IMPORTED_LOCATION ${xxHash_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${xxHash_INCLUDE_DIR})
endif()
