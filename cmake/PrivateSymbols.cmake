# SPDX-License-Identifier: Apache-2.0
# cmake -DREADELF=.. -DNM=.. -DMAP=meshgrad.map -DVERSION=x.y.z -DOUTPUT=x.map -DLIBRARY=FILE -DPROGRAMS=FILE -P
# PrivateSymbols.cmake: writes a library's map for the linker. FILE lists objects, one a line. To the versions of MAP, if any, it
# adds those internal symbols that the programs use, under a version that names this build's x.y.z; other internal
# symbols are local. Internal are those that the objects have as protected: Folder.cmake compiles them so, and the
# public headers have pragmas. So are types of exceptions that fmt from version 10 on makes visible in each library that uses it.
cmake_minimum_required(VERSION 3.25)
function(read_symbols out file)
  file(STRINGS ${file} objects)
  execute_process(COMMAND ${ARGN} ${objects} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[][;]" "" text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

read_symbols(used ${PROGRAMS} ${NM} -u)
string(REGEX MATCHALL " U [^\n]+" used "${used}")
list(TRANSFORM used REPLACE "^ U " "")
list(REMOVE_DUPLICATES used)

read_symbols(known ${LIBRARY} ${READELF} -sW)
string(REGEX MATCHALL "(GLOBAL|WEAK|UNIQUE) +PROTECTED +[0-9]+ [^\n]+" known "${known}")
list(TRANSFORM known REPLACE "^[A-Z]+ +PROTECTED +[0-9]+ +" "")
list(REMOVE_DUPLICATES known)
if(known STREQUAL "")
  message(FATAL_ERROR "needed protected symbols in the objects of the library, got none")
endif()

set(others ${known})
list(REMOVE_ITEM others ${used})
set(shared ${known})
list(REMOVE_ITEM shared ${others})
list(JOIN shared ";\n    " shared)
list(JOIN others ";\n    " others)
set(map "")
if(MAP)
  file(READ ${MAP} map)
endif()
file(WRITE ${OUTPUT} "${map}\nMESHGRAD_PRIVATE_${VERSION} {\n  global:\n    ${shared};\n  local:\n    ${others};\n    _ZT?N3fmt*;\n};\n")
