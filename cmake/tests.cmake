# hawser_test_program(NAME [MAIN] SOURCES source... LIBRARIES target...)
#
# A GoogleTest binary; MAIN: with GoogleTest's main(). Its own code is compiled with HAWSER_TEST_OPTIONS, several sources
# as one (hawser_unity). Include paths start at src/ or tests/.
function(hawser_test_program name)
  cmake_parse_arguments(TEST "MAIN" "" "SOURCES;LIBRARIES" ${ARGN})
  hawser_unity(sources ${name} ${HAWSER_UNITY_TESTS} ${TEST_SOURCES})
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests ${HAWSER_UNITY_ROOT})
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARIES} hawser_base hawser_test_paths GTest::gtest)
  if(TEST_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  target_compile_options(${name} PRIVATE ${HAWSER_TEST_OPTIONS})
endfunction()

# hawser_test(NAME COMMAND command... [RANKS n] [PROCESSORS n] [COST seconds] [TIMEOUT seconds] [LABELS label...]
#             [ENVIRONMENT variable=value...])
#
# RANKS: the command is a target, which `mpirun` starts n times: as any user, on any number of cores, over the loopback
# interface only. By default a test is `quick` and ends after 10 minutes. TIMEOUT: others; three times as long under
# sanitizers.
#
# ./run-tests runs one test more than there are processors, since some tests mostly wait. PROCESSORS: those that the test
# keeps busy, by default one. COST: about its seconds; expensive tests start first.
function(hawser_test name)
  cmake_parse_arguments(TEST "" "RANKS;PROCESSORS;COST;TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  if(TEST_RANKS)
    list(POP_FRONT TEST_COMMAND target)
    set(TEST_COMMAND ${MPIEXEC_EXECUTABLE} -q -np ${TEST_RANKS} $<TARGET_FILE:${target}> ${TEST_COMMAND})
    list(APPEND TEST_ENVIRONMENT ${HAWSER_RANKS_ENVIRONMENT})
  endif()
  foreach(option LABELS=quick PROCESSORS=1 COST=0 TIMEOUT=600)
    string(REGEX MATCH "^[A-Z]+" key ${option})
    if(NOT DEFINED TEST_${key})
      string(REGEX REPLACE "^[A-Z]+=" "" TEST_${key} ${option})
    endif()
  endforeach()
  if(HAWSER_SANITIZE)
    math(EXPR TEST_TIMEOUT "3 * ${TEST_TIMEOUT}")
  endif()
  add_test(NAME ${name} COMMAND ${TEST_COMMAND})
  set_tests_properties(${name} PROPERTIES
                       LABELS "${TEST_LABELS}" PROCESSORS ${TEST_PROCESSORS} COST ${TEST_COST}
                       TIMEOUT ${TEST_TIMEOUT} ENVIRONMENT "${TEST_ENVIRONMENT}")
endfunction()
# Open MPI leaks at exit.
set(HAWSER_IGNORE_LEAKS LSAN_OPTIONS=detect_leaks=0)
set(HAWSER_RANKS_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1
    ${HAWSER_IGNORE_LEAKS})
