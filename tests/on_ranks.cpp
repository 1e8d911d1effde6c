#include "tests/on_ranks.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/cpu/mpi/mpi_communicator.h"

namespace tessera {
namespace {

std::unique_ptr<Communicator> communicator;

}  // namespace

Communicator& ranks() {
  return *communicator;
}

}  // namespace tessera

// MPI must be finalised before statics are destroyed.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::communicator = tessera::make_mpi_communicator();
  const int result = RUN_ALL_TESTS();
  tessera::communicator.reset();
  return result;
}
