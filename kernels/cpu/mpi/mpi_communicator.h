#pragma once

#include <memory>

#include "kernels/communicator.h"

namespace tessera {

// Ranks that are processes on CPUs, started together by MPI's launcher:
//   mpiexec -n 4 PROGRAM
// Begins MPI and ends it, so a process has one in its life. Its thread drives the model.
std::unique_ptr<Communicator> make_mpi_communicator();

}  // namespace tessera
