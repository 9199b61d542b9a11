# Flags that every target shares. Numerics first: no contraction, no fast-math, ever.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

option(MOK_BUILD_TESTS "Build the tests" ON)
option(MOK_BUILD_FUZZ "Build the fuzz targets for libFuzzer (clang)" OFF)
option(MOK_WERROR "Warnings are errors" ON)
set(MOK_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

add_library(mok_options INTERFACE)
target_compile_definitions(mok_options INTERFACE _POSIX_C_SOURCE=200809L
    $<$<NOT:$<CONFIG:Release>>:MOK_ENABLE_ASSERT>)
target_compile_options(mok_options INTERFACE
    -ffp-contract=off -fno-fast-math -fno-math-errno -ftrapping-math
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Wvla -Wcast-qual -Wwrite-strings
    -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes
    $<$<BOOL:${MOK_WERROR}>:-Werror>)
set(CMAKE_C_FLAGS_RELEASE "-O3")
if(MOK_SANITIZE)
  target_compile_options(mok_options INTERFACE -fsanitize=${MOK_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
  target_link_options(mok_options INTERFACE -fsanitize=${MOK_SANITIZE})
endif()
