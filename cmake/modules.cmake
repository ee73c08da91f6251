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

# hawser_module(NAME LIBRARIES target... CUDA target...)
#
# Each folder under src/ is a module: a static library hawser_NAME of its .cpp files and, with HAWSER_TESTS, a
# GoogleTest binary NAME_test of its *_test.cpp files. *_cases.cpp files (op case tables) are part of the tests. CUDA
# sources (files in a folder cuda/ or nccl/, *_cuda.cpp, *.cu) are compiled with HAWSER_CUDA only, cuda_absent.cpp only
# without. A folder without sources becomes an interface library.
#
# With HAWSER_UNITY, a dozen sources of a module are compiled as one: most of the time of a file goes into headers. So
# names in anonymous namespaces must differ within a module. Sources with options of their own, such as the CPU kernels,
# are compiled alone.
function(hawser_module name)
  cmake_parse_arguments(MODULE "" "" "LIBRARIES;CUDA" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(HAWSER_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    list(FILTER sources EXCLUDE REGEX "/cuda_absent\\.cpp$")
    list(APPEND sources ${kernels})
    list(APPEND MODULE_LIBRARIES ${MODULE_CUDA})
  else()
    list(FILTER sources EXCLUDE REGEX "/src/[a-z]+/(.*/)?(cuda|nccl)/|_cuda\\.cpp$")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|cases)\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_(test|cases)\\.cpp$")
  list(TRANSFORM HAWSER_USES_${name} PREPEND hawser_ OUTPUT_VARIABLE uses)
  if(sources)
    add_library(hawser_${name} STATIC ${sources})
    set_target_properties(hawser_${name} PROPERTIES UNITY_BUILD ${HAWSER_UNITY} UNITY_BUILD_BATCH_SIZE 12)
    target_include_directories(hawser_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(hawser_${name} PUBLIC ${uses} ${MODULE_LIBRARIES})
  else()
    add_library(hawser_${name} INTERFACE)
    target_include_directories(hawser_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(hawser_${name} INTERFACE ${uses} ${MODULE_LIBRARIES})
  endif()
  if(HAWSER_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE hawser_${name} GTest::gtest GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE HAWSER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    target_compile_options(${name}_test PRIVATE ${HAWSER_TEST_OPTIONS})
    add_test(NAME ${name} COMMAND ${name}_test)
    set(timeout 600)
    if(HAWSER_SANITIZE)
      set(timeout 1200)
    endif()
    set_tests_properties(${name} PROPERTIES LABELS quick TIMEOUT ${timeout})
  endif()
endfunction()
