# SPDX-License-Identifier: Apache-2.0
# The Fortran module over meshgrad.h: a small static library, and the module file of this compiler.
set(MESHGRAD_HAVE_FORTRAN OFF)
if(NOT MESHGRAD_FORTRAN STREQUAL "OFF")
  include(CheckLanguage)
  check_language(Fortran)
  if(CMAKE_Fortran_COMPILER)
    enable_language(Fortran)
    set(MESHGRAD_HAVE_FORTRAN ON)
  elseif(MESHGRAD_FORTRAN STREQUAL "ON")
    message(FATAL_ERROR "MESHGRAD_FORTRAN=ON, but no Fortran compiler was found; "
                        "fix: install gfortran, or use -DMESHGRAD_FORTRAN=OFF")
  endif()
endif()
if(MESHGRAD_HAVE_FORTRAN)
  set(fortran_modules ${PROJECT_BINARY_DIR}/fortran)
  add_library(meshgrad_fortran STATIC ${PROJECT_SOURCE_DIR}/train/embed/meshgrad.f90)
  add_library(meshgrad::Fortran ALIAS meshgrad_fortran)
  set_target_properties(meshgrad_fortran PROPERTIES Fortran_MODULE_DIRECTORY ${fortran_modules} EXPORT_NAME Fortran)
  # Its text of the last error is of each thread; nothing of OpenMP's library is used.
  target_compile_options(meshgrad_fortran PRIVATE $<$<Fortran_COMPILER_ID:GNU>:-fopenmp>)
  target_include_directories(meshgrad_fortran PUBLIC $<BUILD_INTERFACE:${fortran_modules}>
    $<INSTALL_INTERFACE:include/meshgrad/fortran>)
endif()
