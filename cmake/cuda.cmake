# The CUDA part of the library: built when nvcc is found (MOK_CUDA=AUTO), demanded by ON, left out by OFF.
# Contraction is off on the device too. Spills and ptxas's warnings (a setmaxnreg that is ignored, products
# that are serialised) are errors: each would be a silent loss of speed.
set(MOK_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set(MOK_HAVE_CUDA OFF)
if(NOT MOK_CUDA STREQUAL "OFF" AND NOT MOK_SANITIZE)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(MOK_HAVE_CUDA ON)
  elseif(MOK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOK_CUDA is ON and there is no nvcc")
  endif()
endif()
if(NOT MOK_HAVE_CUDA)
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES OFF) # named below: CMake's own numbers would add a plain sm_90 pass
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

file(GLOB MOK_CUDA_C_SOURCES CONFIGURE_DEPENDS src/cuda/*.c)
file(GLOB MOK_CUDA_KERNELS CONFIGURE_DEPENDS src/cuda/sm90/*.cu)

add_library(mok_cuda_kernels OBJECT ${MOK_CUDA_KERNELS})
target_include_directories(mok_cuda_kernels PRIVATE include src)
set_target_properties(mok_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 17
    CUDA_VISIBILITY_PRESET hidden CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/strict-nvcc)
target_compile_options(mok_cuda_kernels PRIVATE
    -gencode=arch=compute_90a,code=sm_90a -fmad=false -lineinfo
    -Xptxas -warn-spills,--warning-as-error)

add_library(mok_cuda_host OBJECT ${MOK_CUDA_C_SOURCES})
target_include_directories(mok_cuda_host PRIVATE include src)
target_include_directories(mok_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(mok_cuda_host PRIVATE mok_options)
set_target_properties(mok_cuda_host PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
