# Ranks of MPI programs, the library mok_mpi: built when MPI is found (MOK_MPI=AUTO), demanded by ON, left out
# by OFF. The library mok itself does not depend on it.
set(MOK_MPI AUTO CACHE STRING "Build mok_mpi: AUTO, ON or OFF")
set(MOK_HAVE_MPI OFF)
if(NOT MOK_MPI STREQUAL "OFF" AND NOT MOK_SANITIZE)
  if(MOK_MPI STREQUAL "ON")
    find_package(MPI REQUIRED COMPONENTS C)
  else()
    find_package(MPI QUIET COMPONENTS C)
  endif()
  if(MPI_C_FOUND)
    set(MOK_HAVE_MPI ON)
  endif()
endif()
