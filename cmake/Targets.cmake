# SPDX-License-Identifier: Apache-2.0
# What each folder links, the one library, and the one program.
target_link_libraries(meshgrad_engine PUBLIC Threads::Threads PRIVATE fmt::fmt)
target_link_libraries(meshgrad_kernels PRIVATE fmt::fmt hwy::hwy)
target_link_libraries(meshgrad_autograd PRIVATE fmt::fmt)
target_link_libraries(meshgrad_nn PRIVATE fmt::fmt)
set(library_packages fmt::fmt toml11::toml11 nlohmann_json::nlohmann_json xxHash::xxhash)
set(convert_packages fmt::fmt nlohmann_json::nlohmann_json xxHash::xxhash)
target_link_libraries(meshgrad_train_data PRIVATE fmt::fmt nlohmann_json::nlohmann_json xxHash::xxhash)
target_link_libraries(meshgrad_train_learn PRIVATE ${library_packages})
target_link_libraries(meshgrad_train_embed PRIVATE fmt::fmt toml11::toml11 nlohmann_json::nlohmann_json)
# Readers that need a package of their own. Without them TFRecord remains, and readers_none.cpp says what was left out.
if(MESHGRAD_EXTRAS)
  list(APPEND convert_packages ZLIB::ZLIB pugixml::pugixml)
  if(libzip_FOUND)
    target_compile_definitions(meshgrad_train_convert PRIVATE MESHGRAD_HAVE_LIBZIP=1)
    list(APPEND convert_packages libzip::zip)
  endif()
  if(HDF5_FOUND)
    target_include_directories(meshgrad_train_convert PRIVATE ${HDF5_C_INCLUDE_DIRS})
    target_compile_definitions(meshgrad_train_convert PRIVATE MESHGRAD_HAVE_HDF5=1)
    list(APPEND convert_packages ${HDF5_C_LIBRARIES})
  endif()
else()
  get_target_property(sources meshgrad_train_convert SOURCES)
  list(FILTER sources EXCLUDE REGEX "/sources/(array_trajectory|child_source|graph_arrays|graph_collection|grid_frames|hdf5_.*|np[yz].*|vtk_.*|xdmf_.*)\\.cpp$")
  list(APPEND sources ${PROJECT_SOURCE_DIR}/train/convert/sources/readers_none.cpp)
  set_target_properties(meshgrad_train_convert PROPERTIES SOURCES "${sources}")
endif()
target_link_libraries(meshgrad_train_convert PRIVATE ${convert_packages})
# One source alone sees MPI's headers: the others compile the same with and without it.
if(MESHGRAD_HAVE_MPI)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/engine/ranks/mpi.cpp PROPERTIES
    COMPILE_DEFINITIONS "MESHGRAD_HAVE_MPI=1;OMPI_SKIP_MPICXX=1;MPICH_SKIP_MPICXX=1" INCLUDE_DIRECTORIES "${MPI_C_INCLUDE_DIRS}"
    SKIP_UNITY_BUILD_INCLUSION ON)
endif()
if(MESHGRAD_HAVE_METIS)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/nn/partition/metis.cpp PROPERTIES
    COMPILE_DEFINITIONS MESHGRAD_HAVE_METIS=1 SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(meshgrad_nn PRIVATE ${METIS_INCLUDE_DIR})
endif()
# meshgrad.h's functions stand outside of namespaces.
file(GLOB c_sources ${PROJECT_SOURCE_DIR}/train/embed/c_*.cpp)
set_source_files_properties(${c_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# The vector kernels are the product: they are optimised in every build type. Square roots that might set errno
# would not be vectors.
file(GLOB vector_sources ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
set_source_files_properties(${vector_sources} PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno")
# MESHGRAD_NATIVE: of AVX2 and AVX-512, the kernels that this machine does not choose are not compiled.
if(MESHGRAD_NATIVE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  set(unused_isa HWY_AVX3)
  if(flags MATCHES " avx512f " AND flags MATCHES " avx512bw " AND flags MATCHES " avx512vl " AND
     flags MATCHES " avx512dq " AND flags MATCHES " avx512cd ")
    set(unused_isa HWY_AVX2)
  endif()
  target_compile_definitions(meshgrad_kernels PRIVATE MESHGRAD_UNUSED_ISA=${unused_isa})
endif()
# With their unrolled blocks under AddressSanitizer these take as long to compile as half of the rest. Their tests put
# operands in front of pages that may not be read, and scripts/nightly runs them under valgrind, too (without AVX-512).
if(MESHGRAD_SANITIZE MATCHES "address")
  file(GLOB gemm_sources ${PROJECT_SOURCE_DIR}/kernels/cpu/gemm*.cpp)
  set_property(SOURCE ${gemm_sources} APPEND PROPERTY COMPILE_OPTIONS
               "-fno-sanitize=all;-O1;-g0")
  # -O3 of what the sanitizers add takes minutes.
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/cpu/row_ops.cpp APPEND PROPERTY COMPILE_OPTIONS "-O1")
endif()

# Checks of buffers in all but the kernels, whose loops they would slow down.
if(NOT MESHGRAD_SANITIZE)
  foreach(room IN ITEMS engine autograd nn train_data train_learn train_embed train_convert train_tools_program train_tools_extras)
    if(TARGET meshgrad_${room})
      target_compile_options(meshgrad_${room} PRIVATE -fstack-protector-strong
        "$<$<CONFIG:Release>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
    endif()
  endforeach()
endif()

set(rooms meshgrad_train_data meshgrad_train_learn meshgrad_train_embed meshgrad_train_convert)
foreach(room IN LISTS rooms)
  # What the sanitizers add to train/ takes minutes to optimise, and its tests are quick without.
  if(MESHGRAD_SANITIZE MATCHES "address")
    target_compile_options(${room} PRIVATE -O0)
  endif()
  # Apart from the kernels nothing here takes a run's time, but it was half of the library's size at -O3.
  target_compile_options(${room} PRIVATE $<$<CONFIG:Release>:-Os>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # GCC 12 at -Os takes the value of an empty std::optional for one that is read
    target_compile_options(${room} PRIVATE $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
  endif()
endforeach()
# What writes each step's batch: at -Os a step of the smallest models takes 4 % longer.
set_property(SOURCE ${PROJECT_SOURCE_DIR}/train/learn/task/displacements.cpp ${PROJECT_SOURCE_DIR}/train/learn/task/mesh_dynamics.cpp
                    ${PROJECT_SOURCE_DIR}/train/learn/task/field_selection.cpp ${PROJECT_SOURCE_DIR}/train/learn/task/mesh_inputs.cpp
                    ${PROJECT_SOURCE_DIR}/train/data/world_edges.cpp APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
# Which pairs of nodes are within a radius has to be what a GPU finds: no product and sum become one operation.
set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/cpu/world_edges.cpp ${PROJECT_SOURCE_DIR}/train/data/world_edges.cpp
                    ${PROJECT_SOURCE_DIR}/kernels/cpu/solver_arrays.cpp APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)

# Headers are half of what most kernels' sources cost, but a fused one may take half a minute by itself, and a backward one
# more: each of these is a unit of its own, so that no unit is left for the end while other processors wait.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
meshgrad_kernel_units(kernel_units 4 ${kernel_sources})
file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/fused/*.cu)
set(backward_sources ${kernel_sources})
list(FILTER backward_sources INCLUDE REGEX "_backward")
list(FILTER kernel_sources EXCLUDE REGEX "_backward")
meshgrad_kernel_units(fused_units 2 ${kernel_sources})
meshgrad_kernel_units(backward_units 1 ${backward_sources})
list(APPEND fused_units ${backward_units})
if(MESHGRAD_HAVE_CUDA)
  file(GLOB_RECURSE gpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/*_cuda.cpp
    ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp)
  list(FILTER gpu_sources EXCLUDE REGEX "_none\\.cpp$")
  if(NOT MESHGRAD_HAVE_NCCL)
    list(FILTER gpu_sources EXCLUDE REGEX "/(device_ranks|nccl_library)_cuda\\.cpp$")
    list(APPEND gpu_sources ${PROJECT_SOURCE_DIR}/engine/ranks/device_ranks_none.cpp)
  endif()
  meshgrad_gpu_side(cuda ${gpu_sources} ${kernel_units})
  # Fused kernels need compute capability 8.0; a device before that runs op by op. Where a build has no other, PTX that
  # it cannot load stands for them.
  meshgrad_gpu_side(cuda_fused ${fused_units})
  set(fused_architectures ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER fused_architectures EXCLUDE REGEX "^7")
  if(NOT fused_architectures)
    set(fused_architectures 80-virtual)
  endif()
  set_target_properties(meshgrad_gpu_cuda_fused PROPERTIES CUDA_ARCHITECTURES "${fused_architectures}")
  set(gpu_sides cuda cuda_fused)
  foreach(side IN LISTS gpu_sides)
    # Kernels call the host's constexpr functions: std::bit_cast, size_of, name_of.
    target_compile_options(meshgrad_gpu_${side} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
    if(MESHGRAD_WERROR)  # for the test of what the kernels take, which reads the cubins in the objects
      target_compile_options(meshgrad_gpu_${side} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-no-compress>)
    elseif(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      target_compile_options(meshgrad_gpu_${side} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()
    target_link_libraries(meshgrad_gpu_${side} PRIVATE CUDA::cudart_static)
  endforeach()
  string(REPLACE ";" " " architectures "${CMAKE_CUDA_ARCHITECTURES}")
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/engine/gpu_cuda.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    "MESHGRAD_CUDA_ARCHITECTURES=\"${architectures}\"")
  set(gpu_packages CUDA::cudart_static)
  if(MESHGRAD_HAVE_NCCL)
    target_include_directories(meshgrad_gpu_cuda SYSTEM PRIVATE ${MESHGRAD_NCCL_HEADERS})
  endif()
else()
  # The kernels' sources as C++: memory plans for a GPU run their host code, and the optimiser drops the rest.
  set(plan_options "-O1;-g0;-Wno-unknown-pragmas")
  if(MESHGRAD_SANITIZE)
    list(APPEND plan_options -fno-sanitize=all)  # five times as long with them; the kernels' code is never called
  endif()
  list(APPEND kernel_units ${fused_units})
  set_source_files_properties(${kernel_units} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${plan_options}")
  file(GLOB_RECURSE gpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/*_none.cpp
    ${PROJECT_SOURCE_DIR}/kernels/*_none.cpp)
  meshgrad_gpu_side(none ${gpu_sources} ${kernel_units} ${PROJECT_SOURCE_DIR}/kernels/cuda/tables.cpp)
  target_compile_definitions(meshgrad_gpu_none PRIVATE MESHGRAD_PLAN_ONLY)
  set(gpu_packages "")
  set(gpu_sides none)
endif()

meshgrad_library(meshgrad "${gpu_sides}")
add_library(meshgrad::meshgrad ALIAS meshgrad)
target_include_directories(meshgrad PUBLIC $<INSTALL_INTERFACE:include>)
# Until version 1 a minor version may change the interface.
set(soversion ${PROJECT_VERSION_MAJOR})
if(soversion EQUAL 0)
  set(soversion 0.${PROJECT_VERSION_MINOR})
endif()
set_target_properties(meshgrad PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${soversion})
target_link_libraries(meshgrad PRIVATE ${gpu_packages})

# The same objects for those that use what libmeshgrad does not export: the tests, and programs where none is shared.
if(BUILD_SHARED_LIBS AND NOT MESHGRAD_ALL_SYMBOLS)
  meshgrad_library(meshgrad_internal "${gpu_sides}" STATIC)
  target_link_libraries(meshgrad_internal PRIVATE ${gpu_packages})
else()
  add_library(meshgrad_internal ALIAS meshgrad)
endif()
set(program_library meshgrad_internal)
if(MESHGRAD_PROGRAMS_SHARE)
  set(program_library meshgrad)
endif()

# libmeshgrad_convert: convert(), which reads foreign formats. Like the programs it uses internal symbols of libmeshgrad.
add_library(meshgrad_convert $<TARGET_OBJECTS:meshgrad_train_convert>)
add_library(meshgrad::convert ALIAS meshgrad_convert)
set_target_properties(meshgrad_convert PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${soversion} EXPORT_NAME convert
  LINKER_LANGUAGE CXX)
target_include_directories(meshgrad_convert PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/train/convert>)
target_link_libraries(meshgrad_convert PUBLIC meshgrad
  PRIVATE ${convert_packages} $<BUILD_INTERFACE:meshgrad_options>)
if(NOT program_library STREQUAL "meshgrad" AND BUILD_SHARED_LIBS AND NOT MESHGRAD_ALL_SYMBOLS)
  target_link_libraries(meshgrad_convert PRIVATE $<BUILD_INTERFACE:meshgrad_internal>)
endif()

# The program and what else the tests use of it. They run once: a small and quick build is worth more than their speed.
set(tools meshgrad_train_tools_program)
if(MESHGRAD_EXTRAS)
  list(APPEND tools meshgrad_train_tools_extras)
else()
  target_sources(meshgrad_train_tools_program PRIVATE ${PROJECT_SOURCE_DIR}/train/tools/program/extras_none.cpp)
endif()
set(quick_optimisation $<$<CONFIG:Release>:-Os>)
if(MESHGRAD_SANITIZE)
  set(quick_optimisation -O0)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND quick_optimisation $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
endif()
add_library(meshgrad_tools INTERFACE)
foreach(room IN LISTS tools)
  target_compile_options(${room} PRIVATE ${quick_optimisation})
  target_link_libraries(${room} PRIVATE fmt::fmt nlohmann_json::nlohmann_json CLI11::CLI11 toml11::toml11 ZLIB::ZLIB)
  target_sources(meshgrad_tools INTERFACE $<TARGET_OBJECTS:${room}>)
endforeach()
target_link_libraries(meshgrad_tools INTERFACE fmt::fmt ZLIB::ZLIB)

if(MESHGRAD_EXTRAS)
  # Pages: HTML, style sheets and scripts of each as one string.
  file(GLOB page_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/train/tools/extras/page/*)
  foreach(page IN ITEMS Memory Report Check)
    string(TOLOWER ${page} name)
    set(page_source ${PROJECT_BINARY_DIR}/${name}_page.cpp)
    add_custom_command(OUTPUT ${page_source}
      COMMAND ${CMAKE_COMMAND} -DPAGE=${PROJECT_SOURCE_DIR}/train/tools/extras/page/${name}.html -DNAME=k${page}Page
        -DHEADER=meshgrad/train/tools/extras/page.h -DOUTPUT=${page_source} -P ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake
      DEPENDS ${page_files} ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake VERBATIM)
    target_sources(meshgrad_train_tools_extras PRIVATE ${page_source})
  endforeach()

  # The simulated allocators of `meshgrad memory replay`, for the program, the benchmarks and the tests. A target that
  # links this also links the engine, real or simulated, after it.
  file(GLOB replay_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/train/tools/extras/replay/*.cpp)
  add_library(meshgrad_replay STATIC ${replay_sources})
  meshgrad_unity(meshgrad_replay)
  target_include_directories(meshgrad_replay
    PRIVATE $<TARGET_PROPERTY:meshgrad_train_tools_extras,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(meshgrad_replay PUBLIC ZLIB::ZLIB
    PRIVATE meshgrad_options fmt::fmt nlohmann_json::nlohmann_json)
  target_link_libraries(meshgrad_tools INTERFACE meshgrad_replay)
  if(MESHGRAD_TIDY)
    set_target_properties(meshgrad_replay PROPERTIES CXX_CLANG_TIDY "clang-tidy;--quiet")
  endif()
endif()

# The readers with the rooms' objects, for an executable that links another engine or none that exports them.
add_library(meshgrad_readers INTERFACE)
target_sources(meshgrad_readers INTERFACE $<TARGET_OBJECTS:meshgrad_train_convert>)
target_link_libraries(meshgrad_readers INTERFACE ${convert_packages})
set(program_readers meshgrad_readers)
if(MESHGRAD_PROGRAMS_SHARE)
  set(program_readers meshgrad_convert)
endif()
add_executable(meshgrad_cli ${PROJECT_SOURCE_DIR}/train/tools/program/main.cpp)
set_target_properties(meshgrad_cli PROPERTIES OUTPUT_NAME meshgrad LINKER_LANGUAGE CXX)
target_include_directories(meshgrad_cli PRIVATE ${PROJECT_BINARY_DIR}/include/train/tools/program)
target_link_libraries(meshgrad_cli PRIVATE meshgrad_tools ${program_readers} ${program_library})

# meshgrad_export(TARGET MAP OBJECTS USERS): the linker's map of a shared library, with those internal symbols of its
# OBJECTS that USERS refer to. Both are targets of objects; MAP may be empty.
function(meshgrad_export target map objects users)
  set(symbol_map ${PROJECT_BINARY_DIR}/${target}.map)
  set(compiled ${objects} ${users})
  foreach(list IN ITEMS objects users)
    list(TRANSFORM ${list} REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
    set(file ${PROJECT_BINARY_DIR}/${target}_${list}.txt)
    file(GENERATE OUTPUT ${file} CONTENT "$<JOIN:${${list}},\n>\n")
  endforeach()
  add_custom_command(OUTPUT ${symbol_map}
    COMMAND ${CMAKE_COMMAND} -DREADELF=${CMAKE_READELF} -DNM=${CMAKE_NM} -DMAP=${map} -DVERSION=${PROJECT_VERSION}
      -DOUTPUT=${symbol_map} -DLIBRARY=${PROJECT_BINARY_DIR}/${target}_objects.txt
      -DPROGRAMS=${PROJECT_BINARY_DIR}/${target}_users.txt -P ${PROJECT_SOURCE_DIR}/cmake/PrivateSymbols.cmake
    DEPENDS ${objects} ${users} ${map} ${PROJECT_SOURCE_DIR}/cmake/PrivateSymbols.cmake VERBATIM)
  add_custom_target(${target}_symbol_map DEPENDS ${symbol_map})
  add_dependencies(${target}_symbol_map ${compiled})  # make, unlike Ninja, has no rule for the objects of other targets
  add_dependencies(${target} ${target}_symbol_map)
  target_link_options(${target} PRIVATE LINKER:--version-script=${symbol_map} LINKER:--no-undefined)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${symbol_map})
endfunction()

if(MESHGRAD_PROGRAMS_SHARE)
  list(TRANSFORM MESHGRAD_LIBRARY_FOLDERS REPLACE "/" "_" OUTPUT_VARIABLE objects)
  list(TRANSFORM gpu_sides PREPEND gpu_ OUTPUT_VARIABLE side_objects)
  list(APPEND objects ${side_objects})
  list(TRANSFORM objects PREPEND meshgrad_)
  set(users ${tools})
  if(MESHGRAD_EXTRAS)
    list(APPEND users meshgrad_replay)
  endif()
  if(MESHGRAD_BENCH)
    list(APPEND users meshgrad_bench_objects)
  endif()
  meshgrad_export(meshgrad ${PROJECT_SOURCE_DIR}/cmake/meshgrad.map "${objects}" "${users};meshgrad_train_convert")
  meshgrad_export(meshgrad_convert "" meshgrad_train_convert "${users}")
elseif(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(meshgrad PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/meshgrad.map)
  set_property(TARGET meshgrad APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/meshgrad.map)
endif()

# Includes do not show that a room calls one after it; a library of it and those before it does. That of the last one is
# libmeshgrad.
if(MESHGRAD_TESTS AND MESHGRAD_PROGRAMS_SHARE)
  set(folders engine kernels autograd nn)
  foreach(room IN ITEMS data learn)
    list(APPEND folders train/${room})
    add_library(meshgrad_links_${room} MODULE)
    meshgrad_add_sides(meshgrad_links_${room} ${gpu_sides})
    meshgrad_add_folders(meshgrad_links_${room} ${folders})
    set_target_properties(meshgrad_links_${room} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_options(meshgrad_links_${room} PRIVATE LINKER:--no-undefined)
    target_link_libraries(meshgrad_links_${room} PRIVATE ${library_packages} hwy::hwy Threads::Threads
      ${gpu_packages} $<$<BOOL:${MESHGRAD_HAVE_MPI}>:${MPI_C_LIBRARIES}> $<$<BOOL:${MESHGRAD_HAVE_METIS}>:${METIS_LIBRARY}>)
  endforeach()
endif()
