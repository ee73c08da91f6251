# HAWSER_MODULES: the modules of layers.toml in its order, which is that of their layers. HAWSER_USES_name: those that
# module `name` includes.
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/layers.toml)
file(STRINGS ${CMAKE_SOURCE_DIR}/layers.toml lines REGEX "^[a-z]+ = \\[")
foreach(line ${lines})
  string(REGEX MATCH "^[a-z]+" module "${line}")
  string(REGEX REPLACE "^[a-z]+ = " "" uses "${line}")
  string(REGEX MATCHALL "[a-z]+" uses "${uses}")
  list(APPEND HAWSER_MODULES ${module})
  set(HAWSER_USES_${module} ${uses})
endforeach()

# hawser_module(NAME [COLD] LIBRARIES target... CUDA target... ALONE regex COST seconds)
#
# Each folder under src/ is a module: a static library hawser_NAME of its .cpp files and, with HAWSER_TESTS, a
# GoogleTest binary NAME_test of its *_test.cpp files. *_cases.cpp files (op case tables) are part of the tests. CUDA
# sources (files in a folder cuda/ or nccl/, *_cuda.cpp, *.cu) are compiled with HAWSER_CUDA only, cuda_absent.cpp only
# without. A folder without sources becomes an interface library.
#
# COLD: the module does nothing for each token or instruction, and compiles with -O1, in 0.7 of the time of -O2. Several
# sources are compiled as one (hawser_unity), but those that ALONE matches: sources with options of their own. COST: of
# the test.
function(hawser_module name)
  cmake_parse_arguments(MODULE "COLD" "ALONE;COST" "LIBRARIES;CUDA" ${ARGN})
  if(NOT MODULE_ALONE)
    set(MODULE_ALONE "^$")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(HAWSER_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    list(APPEND sources ${kernels})
    list(APPEND MODULE_LIBRARIES ${MODULE_CUDA})
  else()
    list(FILTER sources EXCLUDE REGEX "${HAWSER_CUDA_SOURCES}")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|cases)\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_(test|cases)\\.cpp$")
  list(TRANSFORM HAWSER_USES_${name} PREPEND hawser_ OUTPUT_VARIABLE uses)
  if(sources)
    set(alone ${sources})
    list(FILTER alone INCLUDE REGEX "${MODULE_ALONE}|/cuda_absent\\.cpp$")
    list(REMOVE_ITEM sources ${alone})
    if(HAWSER_CUDA)
      list(FILTER alone EXCLUDE REGEX "/cuda_absent\\.cpp$")
    endif()
    hawser_unity(together hawser_${name} ${HAWSER_UNITY_SOURCES} ${sources})
    add_library(hawser_${name} STATIC ${together} ${alone})
    target_include_directories(hawser_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src PRIVATE ${HAWSER_UNITY_ROOT})
    target_link_libraries(hawser_${name} PUBLIC ${uses} ${MODULE_LIBRARIES})
    if(MODULE_COLD AND NOT HAWSER_SANITIZE)
      target_compile_options(hawser_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
    endif()
  else()
    add_library(hawser_${name} INTERFACE)
    target_include_directories(hawser_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(hawser_${name} INTERFACE ${uses} ${MODULE_LIBRARIES})
  endif()
  if(HAWSER_TESTS AND tests)
    hawser_test_program(${name}_test MAIN SOURCES ${tests} LIBRARIES hawser_${name})
    hawser_test(${name} COMMAND ${name}_test COST ${MODULE_COST})
  endif()
endfunction()
