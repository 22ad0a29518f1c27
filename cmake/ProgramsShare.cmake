# SPDX-License-Identifier: Apache-2.0
# MESHGRAD_PROGRAMS_SHARE: whether the installed programs share libmeshgrad, which then has a private version of the
# internal symbols that they use (PrivateSymbols.cmake). That reads the symbols of compiled objects, of one build type.
set(MESHGRAD_PROGRAMS_SHARE OFF)
if(BUILD_SHARED_LIBS AND NOT MESHGRAD_ALL_SYMBOLS AND NOT MESHGRAD_SANITIZE AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_READELF)
  set(MESHGRAD_PROGRAMS_SHARE ON)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
  set(why_none "")
  if(CMAKE_CONFIGURATION_TYPES)
    set(why_none "the generator has several build types")
  elseif(CMAKE_INTERPROCEDURAL_OPTIMIZATION OR CMAKE_INTERPROCEDURAL_OPTIMIZATION_${build_type}
         OR "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" MATCHES "(^| )-flto")
    set(why_none "objects of -flto have no symbols yet")
  endif()
  if(why_none)
    set(MESHGRAD_PROGRAMS_SHARE OFF)
    message(STATUS "meshgrad: each program has a copy of the library, as ${why_none}")
  endif()
endif()
