# Whether the CUDA backend is built. TERRACE_CUDA = AUTO (where nvcc is found, in builds without sanitizers), ON (an error
# where it is not), OFF. Sets TERRACE_BUILD_CUDA. It needs nvcc 12 or later and cuBLASLt, both of NVIDIA's toolkit. NCCL, where it
# lies beside them or in the system's folders, sets TERRACE_BUILD_NCCL and the target terrace_nccl; without it GPUs of one job
# cannot communicate.
set(TERRACE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE TERRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
# sm_80 runs on 8.x, sm_90a on 9.0 alone; devices after them get the PTX of compute_80, which their driver compiles.
set(TERRACE_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "What nvcc compiles for")

set(TERRACE_BUILD_CUDA OFF)
set(TERRACE_BUILD_NCCL OFF)
if(TERRACE_CUDA STREQUAL "OFF")
  return()
endif()
if(TERRACE_CUDA STREQUAL "AUTO" AND TERRACE_SANITIZE)
  return()
endif()

find_program(TERRACE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT TERRACE_NVCC)
  if(NOT TERRACE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TERRACE_CUDA is ${TERRACE_CUDA}, but there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda: install "
                        "NVIDIA's CUDA toolkit, or configure with -DTERRACE_CUDA=OFF")
  endif()
  return()
endif()

set(CMAKE_CUDA_COMPILER ${TERRACE_NVCC} CACHE FILEPATH "nvcc")
set(CMAKE_CUDA_ARCHITECTURES ${TERRACE_CUDA_ARCHITECTURES})
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
# The module of CMake 3.25 deprecates nvToolsExt, which CUDA 13 no longer has, and fails where a project asks for that CMake.
set(terrace_minimum ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${terrace_minimum})
# CMake 3.25 does not know that nvcc speaks C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
set(TERRACE_BUILD_CUDA ON)

find_path(TERRACE_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(TERRACE_NCCL_LIBRARY nccl HINTS ENV NCCL_HOME ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
if(TERRACE_NCCL_INCLUDE AND TERRACE_NCCL_LIBRARY)
  add_library(terrace_nccl SHARED IMPORTED)
  set_target_properties(terrace_nccl PROPERTIES
    IMPORTED_LOCATION ${TERRACE_NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${TERRACE_NCCL_INCLUDE})
  set(TERRACE_BUILD_NCCL ON)
else()
  message(STATUS "No NCCL (nccl.h, libnccl.so): ranks on several GPUs will not be able to communicate")
endif()
