# hawser_unity(VARIABLE NAME COUNT sources...)
#
# Sets VARIABLE to generated sources that include the given ones, COUNT at a time: most of the time of a source goes into
# headers. With HAWSER_UNITY off, and for CUDA kernels, VARIABLE has the sources themselves.
#
#   hawser_unity(grouped hawser_io 32 files.cpp json.cpp)  # build/cpu/unity/hawser_io_1.cpp
#
# File-local names must differ within a target (tools/check_names). Paths are relative to the checkout: the generated
# source is the same in every checkout, and the compiler cache needs no preprocessor to find its object.
function(hawser_unity variable name count)
  if(NOT HAWSER_UNITY)
    set(${variable} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(sources ${ARGN})
  list(FILTER sources EXCLUDE REGEX "\\.cu$")
  set(result ${ARGN})
  list(FILTER result INCLUDE REGEX "\\.cu$")
  list(LENGTH sources length)
  if(length GREATER 0)
    list(SORT sources)
    # Equal parts: 13 sources are 7 and 6, not 12 and 1.
    math(EXPR files "(${length} + ${count} - 1) / ${count}")
    foreach(file RANGE 1 ${files})
      math(EXPR first "(${file} - 1) * ${length} / ${files}")
      math(EXPR size "${file} * ${length} / ${files} - ${first}")
      list(SUBLIST sources ${first} ${size} part)
      set(content "")
      foreach(source ${part})
        get_filename_component(path ${source} ABSOLUTE)
        string(REPLACE "${CMAKE_SOURCE_DIR}/" "" path ${path})
        string(APPEND content "#include \"${path}\"\n")
      endforeach()
      set(to ${CMAKE_BINARY_DIR}/unity/${name}_${file}.cpp)
      file(GENERATE OUTPUT ${to} CONTENT "${content}")
      list(APPEND result ${to})
    endforeach()
  endif()
  set(${variable} ${result} PARENT_SCOPE)
endfunction()

# Sources that are compiled with HAWSER_CUDA only.
set(HAWSER_CUDA_SOURCES "/src/[a-z]+/(.*/)?(cuda|nccl)/.*\\.cpp$|_cuda\\.cpp$")

set(HAWSER_UNITY_SOURCES 32)
set(HAWSER_UNITY_HOT 14)
set(HAWSER_UNITY_TESTS 16)
if(HAWSER_UNITY)
  set(HAWSER_UNITY_ROOT ${CMAKE_SOURCE_DIR})
  # GCC takes an included source for a header, whose types should not use anonymous namespaces.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  # Below 128 MiB, GCC's default, and 512 MiB it would collect garbage often: a tenth of the time of a large source.
  add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:--param=ggc-min-heapsize=524288>)
endif()
