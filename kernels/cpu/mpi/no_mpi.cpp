#include "kernels/cpu/mpi/mpi_communicator.h"

namespace tessera {

std::unique_ptr<Communicator> make_mpi_communicator() {
  return nullptr;
}

}  // namespace tessera
