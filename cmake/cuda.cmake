# The cuda device, C++20 in kernels too. Needs the CUDA toolkit and cuDNN, no GPU. Links the runtime but not the driver
# (libcuda), so that the binary starts without a driver.
#
# HAWSER_CUDA_ARCHITECTURES: the compute capabilities that get kernels, as in "80;90", or "all" that Hawser knows. By
# default those of this machine's GPUs, or 90 (H100, H200) without any. 90 is built as 90a, with Hopper's tensor cores.
set(HAWSER_CUDA_ALL 80 86 89 90a 100 120)
set(HAWSER_CUDA_ARCHITECTURES "" CACHE STRING "Compute capabilities that get kernels, as in 80;90, or all")
set(HAWSER_CUDA_LIST ${HAWSER_CUDA_ARCHITECTURES})
if(HAWSER_CUDA_LIST STREQUAL "all")
  set(HAWSER_CUDA_LIST ${HAWSER_CUDA_ALL})
elseif(NOT HAWSER_CUDA_LIST)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE HAWSER_CUDA_LIST OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" HAWSER_CUDA_LIST "${HAWSER_CUDA_LIST}")
  list(TRANSFORM HAWSER_CUDA_LIST REPLACE "\\." "")
  list(FILTER HAWSER_CUDA_LIST EXCLUDE REGEX "^[1-7].$")
  if(NOT HAWSER_CUDA_LIST)
    set(HAWSER_CUDA_LIST 90a)
  endif()
endif()
list(TRANSFORM HAWSER_CUDA_LIST REPLACE "^90$" "90a")
list(REMOVE_DUPLICATES HAWSER_CUDA_LIST)
foreach(architecture ${HAWSER_CUDA_LIST})
  if(NOT architecture MATCHES "^(8|9|10|11|12)[0-9]a?$")
    message(FATAL_ERROR "HAWSER_CUDA_ARCHITECTURES: ${architecture} is none; all, or a list of those from 80 on, as in 80;90")
  endif()
endforeach()
message(STATUS "Kernels for compute capabilities ${HAWSER_CUDA_LIST}")
find_program(HAWSER_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT HAWSER_NVCC AND NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "nvcc was not found: install the CUDA toolkit 13.0, or set CMAKE_CUDA_COMPILER")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${HAWSER_NVCC})
endif()
list(TRANSFORM HAWSER_CUDA_LIST APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HAWSER_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
# CMake 3.25 does not know that nvcc supports C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -Xcompiler=-O2,-g1")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -Xcompiler=-O2")
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
foreach(flag -Wall -Wextra -Wno-missing-field-initializers)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>)
endforeach()
find_package(CUDAToolkit REQUIRED)
# What all CUDA sources see.
add_library(hawser_cuda INTERFACE)
target_compile_definitions(hawser_cuda INTERFACE HAWSER_CUDA)
target_link_libraries(hawser_cuda INTERFACE CUDA::cudart)
# A bundle has the libraries that a bare GPU host lacks in lib/ next to its binaries (scripts/bundle).
set(CMAKE_BUILD_RPATH "\$ORIGIN/lib")

# cuDNN's graph interface in C++.
fetch_wheel(cudnn-frontend 1.23.0 include/cudnn_frontend.h "include/*")

# Templates of GEMM kernels (ops/gemm/grouped_cutlass_cuda.cu).
fetch_wheel(cutlass 4.2.0 cutlass_library/source/include/cutlass/cutlass.h "cutlass_library/source/include/*")
add_library(hawser_cutlass INTERFACE)
target_include_directories(hawser_cutlass SYSTEM INTERFACE ${cutlass_FOLDER}/cutlass_library/source/include)

find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
add_library(hawser_cudnn INTERFACE)
target_include_directories(hawser_cudnn SYSTEM INTERFACE ${cudnn-frontend_FOLDER}/include ${CUDNN_INCLUDE})
target_link_libraries(hawser_cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc)

# CUPTI traces a step (device/cuda/activities.h). Only its header is used here: the library is loaded for a trace.
find_path(CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/include
          ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include REQUIRED)
add_library(hawser_cupti INTERFACE)
target_include_directories(hawser_cupti SYSTEM INTERFACE ${CUPTI_INCLUDE})
target_link_libraries(hawser_cupti INTERFACE ${CMAKE_DL_LIBS})
