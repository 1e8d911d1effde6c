#pragma once

#include <cstdint>
#include <memory>

#include "kernels/communicator.h"

namespace tessera {

// Communicator over ranks that are processes on CPUs, started together by MPI's launcher:
//   mpirun -n 4 PROGRAM
// It initialises MPI, and its destructor finalises MPI, so a process creates at most one. A program
// without a launcher is one rank.
// Returns: null if this build has no MPI.
// Errors: an MPI error ends all ranks.
std::unique_ptr<Communicator> make_mpi_communicator();

// Returns: number of processes that MPI's launcher started, this one included; 1 without a
// launcher. It reads the launcher's environment variables and does not initialise MPI. Supports
// MPICH, its derivatives, and Open MPI.
int32_t launched_processes();

}  // namespace tessera
