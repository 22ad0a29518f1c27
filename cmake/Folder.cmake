# SPDX-License-Identifier: Apache-2.0
# meshgrad_folder(NAME BELOW...): one object library a folder, or a room of train/. Its include root holds only
# meshgrad/NAME, and it sees only the folders below it, so that an upward include does not build.
add_library(meshgrad_options INTERFACE)
target_compile_features(meshgrad_options INTERFACE cxx_std_20)
target_compile_options(meshgrad_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Wno-missing-field-initializers>  # designated initialisers leave out what keeps its default
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${MESHGRAD_WERROR}>>:-Werror>)
# GCC 12 sees overlapping copies in std::string's own operator+ (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(meshgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
# GCC 13 and 14 take a reference that a view returns for one into the view; GCC 15 no longer asks for this by -Wall.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(meshgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
if(MESHGRAD_SANITIZE)
  target_compile_options(meshgrad_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MESHGRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(meshgrad_options INTERFACE -fsanitize=${MESHGRAD_SANITIZE})
  # GCC's flow analysis takes the sanitizers' checks for paths.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(meshgrad_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  elseif(MESHGRAD_SANITIZE MATCHES "address")
    target_compile_definitions(meshgrad_options INTERFACE __SANITIZE_ADDRESS__=1)  # as GCC says
  endif()
endif()

# What libmeshgrad exports is said where it is declared: see cmake/Install.cmake.
include(ProgramsShare)
if(NOT MESHGRAD_ALL_SYMBOLS)
  foreach(language IN ITEMS C CXX CUDA)
    set(CMAKE_${language}_VISIBILITY_PRESET hidden)
  endforeach()
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endif()

# Sources of one target are compiled twelve at a time, headers once. Those with options of their own stay alone.
function(meshgrad_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${MESHGRAD_UNITY} UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# The same for kernels, as CMake 3.25 has no unity build of CUDA: OUT is a list of sources, each of which includes SIZE
# of the given ones.
function(meshgrad_kernel_units out size)
  if(NOT MESHGRAD_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  list(TRANSFORM ARGN REPLACE "^${PROJECT_SOURCE_DIR}/" "" OUTPUT_VARIABLE sources)
  list(LENGTH sources count)
  math(EXPR last "${count} - 1")
  set(units "")
  foreach(first RANGE 0 ${last} ${size})
    list(SUBLIST sources ${first} ${size} included)
    list(GET included 0 name)
    get_filename_component(name ${name} NAME_WE)
    list(TRANSFORM included REPLACE ".+" "#include <meshgrad/\\0>\n")
    string(JOIN "" text ${included})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/kernel_units/from_${name}.cu CONTENT "${text}" @ONLY)
    list(APPEND units ${PROJECT_BINARY_DIR}/kernel_units/from_${name}.cu)
  endforeach()
  set(${out} ${units} PARENT_SCOPE)
endfunction()

# Symbols of a part of the library that no pragma makes public.
function(meshgrad_internal_symbols target)
  if(MESHGRAD_PROGRAMS_SHARE)
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET protected)
  endif()
endfunction()

function(meshgrad_folder name)
  string(REPLACE "/" "_" target meshgrad_${name})
  set(root ${PROJECT_BINARY_DIR}/include/${name})
  get_filename_component(parent ${root}/meshgrad/${name} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${name} ${root}/meshgrad/${name} SYMBOLIC)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/train/tools/program/main\\.cpp$|/train/tools/extras/replay/")
  # What exists once a side of the GPU seam (see meshgrad_gpu_side), or only in a build without something.
  list(FILTER sources EXCLUDE REGEX "_(cuda|none)\\.cpp$|/kernels/cuda/")
  add_library(${target} OBJECT ${sources})
  meshgrad_unity(${target})
  meshgrad_internal_symbols(${target})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:meshgrad_options>)
  target_compile_definitions(${target} PRIVATE MESHGRAD_VERSION="${PROJECT_VERSION}")
  foreach(below IN LISTS ARGN)
    string(REPLACE "/" "_" below meshgrad_${below})
    target_link_libraries(${target} PUBLIC ${below})
  endforeach()
  if(MESHGRAD_TIDY)
    set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "clang-tidy;--quiet")
  endif()
endfunction()

# The objects of folders, and where they include from.
function(meshgrad_add_folders target)
  foreach(folder IN LISTS ARGN)
    string(REPLACE "/" "_" objects meshgrad_${folder})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/${folder}>)
  endforeach()
endfunction()

# One side of the GPU seam (engine/gpu.h, kernels/tables.h): every engine has exactly one of them. The
# kernels' sources in kernels/cuda/ compile with nvcc, and with the host's compiler for the simulated device.
function(meshgrad_gpu_side name)
  add_library(meshgrad_gpu_${name} OBJECT ${ARGN})
  if(NOT name STREQUAL "simulated")  # which no library for others has
    meshgrad_internal_symbols(meshgrad_gpu_${name})
  endif()
  target_link_libraries(meshgrad_gpu_${name} PRIVATE $<BUILD_INTERFACE:meshgrad_options> fmt::fmt
    meshgrad_engine meshgrad_kernels)
endfunction()

function(meshgrad_add_sides target)
  foreach(side IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:meshgrad_gpu_${side}>)
  endforeach()
endfunction()

# meshgrad_library(TARGET SIDES [TYPE]): libmeshgrad from its folders and one side of the seam, of one object library or more.
function(meshgrad_library target sides)
  add_library(${target} ${ARGN})
  meshgrad_add_sides(${target} ${sides})
  meshgrad_add_folders(${target} ${MESHGRAD_LIBRARY_FOLDERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PUBLIC Threads::Threads
    PRIVATE ${library_packages} hwy::hwy $<BUILD_INTERFACE:meshgrad_options>)
  if(MESHGRAD_HAVE_MPI)
    target_link_libraries(${target} PRIVATE ${MPI_C_LIBRARIES})
  endif()
  if(MESHGRAD_HAVE_METIS)
    target_link_libraries(${target} PRIVATE ${METIS_LIBRARY})
  endif()
endfunction()
