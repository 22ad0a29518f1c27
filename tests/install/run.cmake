# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=.. -DSOURCE=.. -DCOMPILER=.. [-DFLAGS=..] -P run.cmake: installs BUILD to a fresh prefix, moves it,
# and uses it from outside: the program, every header by itself, and a small application.
cmake_minimum_required(VERSION 3.25)
set(work ${BUILD}/install_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  message("$ ${ARGN}\n${out}")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit status ${code}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/prefix)
run(${work}/prefix/bin/meshgrad --version)

file(GLOB_RECURSE headers RELATIVE ${work}/prefix/include ${work}/prefix/include/*.h)
if(headers STREQUAL "")
  message(FATAL_ERROR "no header was installed")
endif()
list(TRANSFORM headers REPLACE "(.+)" "#include <\\1>\n")
list(JOIN headers "" text)
file(WRITE ${work}/headers.cpp "${text}int main() {}\n")
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
run(${COMPILER} -std=c++20 -fsyntax-only ${flags} -I${work}/prefix/include ${work}/headers.cpp)

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix
  -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/use)
run(${work}/build/allocator_alone)
