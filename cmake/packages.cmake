# All libraries come from Debian; docs/dependencies.md explains each.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings, which Open MPI 5 does not have
find_package(MPI REQUIRED COMPONENTS CXX)
# Only its header is used: the library is loaded on demand (comm/mpi/library.h).
add_library(hawser_mpi INTERFACE)
target_include_directories(hawser_mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
target_compile_definitions(hawser_mpi INTERFACE OMPI_SKIP_MPICXX)
target_link_libraries(hawser_mpi INTERFACE ${CMAKE_DL_LIBS})
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
if(HAWSER_TESTS)
  find_package(GTest REQUIRED)
endif()

# Debian's CMake package of dnnl requires OpenCL headers that are not needed here: link the library directly.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(hawser_dnnl INTERFACE)
target_link_libraries(hawser_dnnl INTERFACE ${DNNL_LIBRARY})

find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
add_library(hawser_pcre2 INTERFACE)
target_link_libraries(hawser_pcre2 INTERFACE ${PCRE2_LIBRARY})

find_package(ZLIB REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
add_library(hawser_zstd INTERFACE)
target_link_libraries(hawser_zstd INTERFACE ${ZSTD_LIBRARY})

find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(hawser_xxhash INTERFACE)
target_link_libraries(hawser_xxhash INTERFACE ${XXHASH_LIBRARY})

# libmd has SHA-256 and SHA-1, the checksums of the Hub (hub/checksum.h).
find_path(LIBMD_INCLUDE sha2.h REQUIRED)
find_library(LIBMD_LIBRARY md REQUIRED)
add_library(hawser_libmd INTERFACE)
target_include_directories(hawser_libmd SYSTEM INTERFACE ${LIBMD_INCLUDE})
target_link_libraries(hawser_libmd INTERFACE ${LIBMD_LIBRARY})

# libcurl sends requests (net/http_client.h). Only its header is used here: the library is loaded on demand.
find_path(CURL_INCLUDE curl/curl.h REQUIRED)
add_library(hawser_curl INTERFACE)
target_include_directories(hawser_curl SYSTEM INTERFACE ${CURL_INCLUDE})
target_link_libraries(hawser_curl INTERFACE ${CMAKE_DL_LIBS})
