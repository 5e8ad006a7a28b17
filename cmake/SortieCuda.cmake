# Finds CUDA's compiler and libraries for libsortie-cuda.so: option SORTIE_CUDA, preset `cuda`. nvcc is the first that exists
# of CUDACXX, nvcc in the PATH, in /usr/local/cuda, and in the user's cache, where `scripts/setup --cuda` installs it.
option(SORTIE_CUDA "Build libsortie-cuda.so, which computes on NVIDIA GPUs (needs CUDA 13's nvcc, cuBLAS and NCCL)" OFF)
set(SORTIE_CUDA_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING
    "Compute capabilities that the module has code for, without the point; later GPUs compile the PTX of the last, if that is not 90")

if(NOT SORTIE_CUDA)
  return()
endif()
if(SORTIE_SANITIZE)
  message(FATAL_ERROR "SORTIE_CUDA: GPUs and SORTIE_SANITIZE do not go together; the emulated GPU of the tests runs with sanitizers")
endif()
if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache "$ENV{XDG_CACHE_HOME}")
else()
  set(cache "$ENV{HOME}/.cache")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(DEFINED ENV{CUDACXX})
    set(nvcc "$ENV{CUDACXX}")
  else()
    find_program(nvcc nvcc NO_CACHE PATHS /usr/local/cuda/bin "${cache}/sortie/cuda/bin")
  endif()
  if(NOT nvcc)
    message(FATAL_ERROR "SORTIE_CUDA: there is no nvcc in the PATH, in /usr/local/cuda or in ${cache}/sortie/cuda; "
                        "scripts/setup --cuda installs one")
  endif()
  set(CMAKE_CUDA_COMPILER "${nvcc}")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # set for each target
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know this option of nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "SORTIE_CUDA: ${CMAKE_CUDA_COMPILER} is CUDA ${CMAKE_CUDA_COMPILER_VERSION}; 13.0 or later is needed")
endif()
# The compiler itself reports the folder of its toolkit: an nvcc in the PATH may be a symlink or a wrapper script.
execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --dryrun -c -x cu /dev/null ERROR_VARIABLE dryrun OUTPUT_QUIET)
if(NOT dryrun MATCHES "#\\$ TOP=([^\n]+)")
  message(FATAL_ERROR "SORTIE_CUDA: ${CMAKE_CUDA_COMPILER} does not say where its toolkit is:\n${dryrun}")
endif()
file(REAL_PATH "${CMAKE_MATCH_1}" SORTIE_CUDA_ROOT)
set(include_folders "${SORTIE_CUDA_ROOT}/include" "${SORTIE_CUDA_ROOT}/targets/x86_64-linux/include")
set(library_folders "${SORTIE_CUDA_ROOT}/lib64" "${SORTIE_CUDA_ROOT}/lib" "${SORTIE_CUDA_ROOT}/targets/x86_64-linux/lib")
find_path(SORTIE_CUDA_INCLUDE cuda_runtime.h PATHS ${include_folders} NO_DEFAULT_PATH REQUIRED)
find_library(SORTIE_CUDART cudart_static PATHS ${library_folders} NO_DEFAULT_PATH REQUIRED)
# Search order: the toolkit, the system, the packages that scripts/setup has downloaded.
find_path(SORTIE_CUBLAS_INCLUDE cublasLt.h HINTS ${include_folders} PATHS "${cache}/sortie/cuda/include" REQUIRED)
find_path(SORTIE_NCCL_INCLUDE nccl.h HINTS ${include_folders} PATHS "${cache}/sortie/cuda/include" REQUIRED)
find_library(SORTIE_CUBLASLT cublasLt HINTS ${library_folders} PATHS "${cache}/sortie/cuda/lib" REQUIRED)
find_library(SORTIE_NCCL nccl HINTS ${library_folders} PATHS "${cache}/sortie/cuda/lib" REQUIRED)
# CUPTI is used only by tests/bench/gpu_step --kernels; some toolkits do not include it.
find_path(SORTIE_CUPTI_INCLUDE cupti.h HINTS ${include_folders} PATHS "${SORTIE_CUDA_ROOT}/extras/CUPTI/include" "${cache}/sortie/cuda/include")
find_library(SORTIE_CUPTI cupti HINTS ${library_folders} PATHS "${SORTIE_CUDA_ROOT}/extras/CUPTI/lib64" "${cache}/sortie/cuda/lib")

# Headers and libraries for the host code of the module. With --as-needed, cuBLASLt and NCCL are dependencies only of a library
# that calls them. The CUDA runtime is linked statically, so that another copy in the process does not interfere with it.
add_library(sortie_cuda_toolkit INTERFACE)
target_include_directories(sortie_cuda_toolkit SYSTEM INTERFACE
                           "${SORTIE_CUDA_INCLUDE}" "${SORTIE_CUBLAS_INCLUDE}" "${SORTIE_NCCL_INCLUDE}")
target_link_libraries(sortie_cuda_toolkit INTERFACE
                      -Wl,--as-needed "${SORTIE_CUBLASLT}" "${SORTIE_NCCL}" "${SORTIE_CUDART}" Threads::Threads ${CMAKE_DL_LIBS} rt)
# RUNPATH of the module, in search order: its own folder, the folders of the libraries at build time, the installed toolkit.
foreach(library "${SORTIE_CUBLASLT}" "${SORTIE_NCCL}")
  cmake_path(GET library PARENT_PATH folder)
  list(APPEND SORTIE_CUDA_RUNPATH "${folder}")
endforeach()
list(PREPEND SORTIE_CUDA_RUNPATH "$ORIGIN")
list(APPEND SORTIE_CUDA_RUNPATH /usr/local/cuda/lib64)
list(REMOVE_DUPLICATES SORTIE_CUDA_RUNPATH)

if("90" IN_LIST SORTIE_CUDA_ARCHITECTURES)
  target_compile_definitions(sortie_cuda_toolkit INTERFACE SORTIE_CUDA_SM90)
endif()

# sortie_cuda_kernels(TARGET SOURCES...) - adds an object library of kernels. OBJECT.resources has ptxas's statistics of each kernel.
function(sortie_cuda_kernels target)
  add_library(${target} OBJECT ${ARGN})
  set(architectures ${SORTIE_CUDA_ARCHITECTURES})
  list(LENGTH architectures count)
  list(SORT architectures COMPARE NATURAL)
  list(POP_BACK architectures newest)
  # Warpgroup products (wgmma) need the architecture 9.0a, whose code and PTX work on no other GPU. So if 9.0 is the newest
  # architecture, the module has no PTX for later GPUs.
  if(newest EQUAL 90)
    list(APPEND architectures 90)
    set(newest "")
  endif()
  list(TRANSFORM architectures REPLACE "^90$" 90a)
  list(TRANSFORM architectures APPEND -real)
  include(ProcessorCount)
  ProcessorCount(threads)
  if(threads GREATER count)
    set(threads ${count})
  endif()
  set_target_properties(${target} PROPERTIES
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_ARCHITECTURES "${architectures};${newest}" POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}")
  # -lineinfo: profilers and compute-sanitizer name source lines; it changes no instruction.
  target_compile_options(${target} PRIVATE -O3 -lineinfo -Xptxas=-v -Xcompiler=-Wall,-Wextra "--threads=${threads}")
  if(SORTIE_WERROR)
    target_compile_options(${target} PRIVATE -Werror=all-warnings)
  endif()
  set(launcher "${CMAKE_SOURCE_DIR}/cmake/nvcc_resources")
  if(SORTIE_CCACHE)
    # Depend mode: ccache hashes the files that nvcc lists as dependencies, because the preprocessor's output covers only one
    # architecture.
    list(APPEND launcher "${CMAKE_COMMAND}" -E env CCACHE_DEPEND=1 "${SORTIE_CCACHE}")
  endif()
  set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
endfunction()
