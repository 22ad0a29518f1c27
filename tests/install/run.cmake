# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=.. -DSOURCE=.. -DCOMPILER=.. [-DFLAGS=..] -P run.cmake: installs BUILD to a fresh prefix, moves it,
# and uses it from outside: the program, every header by itself, and small applications.
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

# Each header by itself, where no other than the installed ones can be found.
file(GLOB_RECURSE headers RELATIVE ${work}/prefix/include ${work}/prefix/include/*.h)
if(headers STREQUAL "")
  message(FATAL_ERROR "no header was installed")
endif()
separate_arguments(flags UNIX_COMMAND "${FLAGS}")
set(sources "")
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  file(WRITE ${work}/headers/${name}.cpp "#include <${header}>\n")
  list(APPEND sources ${work}/headers/${name}.cpp)
endforeach()
run(${COMPILER} -std=c++20 -fsyntax-only ${flags} -I${work}/prefix/include ${sources})

# The shared library exports what those headers declare, and nothing of what it is made with.
file(GLOB library ${work}/prefix/lib*/libmeshgrad.so ${work}/prefix/lib*/*/libmeshgrad.so)
find_program(nm nm)
if(library AND nm)
  execute_process(COMMAND ${nm} -DC --defined-only ${library} OUTPUT_VARIABLE symbols)
  # Names that begin with an internal namespace: public templates may have internal types as arguments.
  string(REGEX MATCHALL "[0-9a-f]+ [A-Za-z] [^(<\n]*(meshgrad::cpu|meshgrad::cuda|meshgrad::gpu|fmt|toml|nlohmann|hwy)::[^\n]*" internal "${symbols}")
  if(internal OR NOT symbols MATCHES "meshgrad::Runtime::Runtime")
    list(JOIN internal "\n" internal)
    message(FATAL_ERROR "the library exports internal symbols, or not its own:\n${internal}")
  endif()
endif()

# README's lines of C++ are those of the example.
file(READ ${SOURCE}/../../examples/train_in_memory.cpp example)
file(READ ${SOURCE}/../../README.md readme)
string(REGEX MATCH "```cpp\n([^`]*)```" readme "${readme}")
string(REPLACE ";" "\\;" lines "${CMAKE_MATCH_1}")
string(REPLACE "\n" ";" lines "${lines}")
foreach(line IN LISTS lines)
  string(STRIP "${line}" line)
  string(FIND "${example}" "${line}" found)
  if(found LESS 0)
    message(FATAL_ERROR "README.md shows C++ that examples/train_in_memory.cpp does not have: ${line}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix
  -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}")
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/train_in_memory)
run(${work}/build/allocator_alone)
