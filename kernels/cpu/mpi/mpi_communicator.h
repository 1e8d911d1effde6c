#pragma once

#include <cstdint>
#include <memory>

#include "kernels/communicator.h"

namespace tessera {

// Ranks that are processes on CPUs, started together by MPI's launcher:
//   mpirun -n 4 PROGRAM
// Begins MPI and ends it, so a process has one in its life. A program without a launcher is one
// rank. Null: this build has no MPI.
std::unique_ptr<Communicator> make_mpi_communicator();

// How many processes MPI's launcher has started together with this one, as it told them; 1 where
// there is none. Begins nothing. Knows MPICH, what descends from it, and Open MPI.
int32_t launched_processes();

}  // namespace tessera
