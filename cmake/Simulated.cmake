# SPDX-License-Identifier: Apache-2.0
# meshgrad_simulated: the library with the tests' simulated device (tests/simt) on the other side of the GPU
# seam. To be included in the folder that uses it: how a source is compiled is known to its folder alone.
if(MESHGRAD_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()  # its fibers and its own answers to -fsanitize=thread allow no other sanitizer
endif()
find_package(Boost 1.71 QUIET CONFIG COMPONENTS context)
if(NOT TARGET Boost::context)
  if(MESHGRAD_WERROR)
    message(FATAL_ERROR "needed Boost.Context for the simulated device, got none; fix: scripts/setup --tests")
  endif()
  message(STATUS "meshgrad: no Boost.Context, so no tests on the simulated device; scripts/setup --tests installs it")
  return()
endif()

# The host's compiler makes a call of each access to memory, and of each index outside its array and address that
# is not aligned for its type, which the runner answers; -g1 gives it lines. Registers start as a pattern: a value
# of a lane that computed none is then no likely one.
function(meshgrad_kernel_sources)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
    "-O2;-g1;-fsanitize=thread;-fsanitize=bounds-strict;-fsanitize=alignment;--param=tsan-instrument-func-entry-exit=0;-ftrivial-auto-var-init=pattern;-Wno-unknown-pragmas")
endfunction()

file(GLOB runner_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/simt/*.cpp)
list(FILTER runner_sources EXCLUDE REGEX "_test\\.cpp$")
# The calls of cuBLASLt and NCCL, where the toolkit's headers declare them, are answered by stand-ins.
set(simulated_ranks ${PROJECT_SOURCE_DIR}/engine/ranks/device_ranks_none.cpp)
set(MESHGRAD_SIMULATED_NCCL OFF)
if(MESHGRAD_CUDA_HEADERS)
  meshgrad_nccl_header(${MESHGRAD_CUDA_HEADERS}/nccl.h MESHGRAD_SIMULATED_NCCL)
endif()
if(MESHGRAD_SIMULATED_NCCL)
  set(simulated_ranks ${PROJECT_SOURCE_DIR}/engine/ranks/device_ranks_cuda.cpp)
else()
  list(FILTER runner_sources EXCLUDE REGEX "/nccl_simulated\\.cpp$")
endif()
set(simulated_gemm "")
if(MESHGRAD_CUDA_HEADERS AND EXISTS ${MESHGRAD_CUDA_HEADERS}/cublasLt.h)
  set(MESHGRAD_SIMULATED_CUBLASLT ON)
  set(simulated_gemm ${PROJECT_SOURCE_DIR}/kernels/cuda/gemm_cuda.cpp)
  list(FILTER runner_sources EXCLUDE REGEX "/gemm_without_library\\.cpp$")
else()
  set(MESHGRAD_SIMULATED_CUBLASLT OFF)
  list(FILTER runner_sources EXCLUDE REGEX "/(cublaslt_simulated|gemm_loops)\\.cpp$")
endif()
set_source_files_properties(${runner_sources} PROPERTIES COMPILE_OPTIONS "-O3;-g1")
file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
meshgrad_kernel_sources(${kernel_sources})
file(GLOB table_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp)
list(FILTER table_sources EXCLUDE REGEX "_(cuda|none)\\.cpp$")

meshgrad_gpu_side(simulated ${runner_sources} ${kernel_sources} ${table_sources}
  ${simulated_ranks} ${simulated_gemm})
target_include_directories(meshgrad_gpu_simulated PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/simt)
if(MESHGRAD_SIMULATED_NCCL OR MESHGRAD_SIMULATED_CUBLASLT)
  target_include_directories(meshgrad_gpu_simulated SYSTEM PRIVATE ${MESHGRAD_CUDA_HEADERS})
endif()
target_link_libraries(meshgrad_gpu_simulated PRIVATE Boost::context)
meshgrad_library(meshgrad_simulated simulated STATIC)
target_include_directories(meshgrad_simulated INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/simt)
target_link_libraries(meshgrad_simulated PRIVATE Boost::context ${CMAKE_DL_LIBS})
