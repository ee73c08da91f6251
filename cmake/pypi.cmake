# fetch_wheel(NAME VERSION FILE PATTERN...): a package of PyPI, pinned by hash in cmake/NAME.txt. Extracts the files of its
# wheel that match a PATTERN into the build folder once, and sets NAME_FOLDER to where they are. FILE: one of them.
#
#   fetch_wheel(cutlass 4.2.0 cutlass_library/source/include/cutlass/cutlass.h "cutlass_library/source/include/*")
function(fetch_wheel name version file)
  set(to ${CMAKE_BINARY_DIR}/${name}-${version})
  if(NOT EXISTS ${to}/${file})
    message(STATUS "Fetching ${name} ${version} from PyPI")
    find_program(PYTHON3 python3 REQUIRED)
    execute_process(
      COMMAND ${PYTHON3} -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all:
              --python-version 3.11 --platform manylinux_2_28_x86_64 --require-hashes
              --requirement ${CMAKE_SOURCE_DIR}/cmake/${name}.txt --dest ${to}
      RESULT_VARIABLE failed)
    file(GLOB wheel ${to}/*.whl)
    if(failed OR NOT wheel)
      message(FATAL_ERROR "${name} ${version} could not be fetched from PyPI (pip above); "
                          "put its files ${ARGN} into ${to}${FETCH_WHEEL_HINT}")
    endif()
    file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${to} PATTERNS ${ARGN})
    file(REMOVE ${wheel})
    if(NOT EXISTS ${to}/${file})
      message(FATAL_ERROR "no ${file} in ${wheel}")
    endif()
  endif()
  set(${name}_FOLDER ${to} PARENT_SCOPE)
endfunction()
