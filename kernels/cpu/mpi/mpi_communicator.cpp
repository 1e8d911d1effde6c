#include "kernels/cpu/mpi/mpi_communicator.h"

#include <mpi.h>

#include <limits>

#include "kernels/check.h"

namespace tessera {
namespace {

// MPI's default is to end all ranks at the first error, so no call here returns one.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    TESSERA_CHECK(provided >= MPI_THREAD_FUNNELED, "MPI allows no threads beside its own");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~MpiCommunicator() override { MPI_Finalize(); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return ranks_; }

  // Ops of the CPU have returned when their results stand, so there is no stream to wait for.
  void all_reduce_sum(std::span<float> numbers, Stream /*stream*/) override {
    TESSERA_CHECK(numbers.size() <= std::numeric_limits<int>::max(), "MPI counts by int");
    MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator() {
  return std::make_unique<MpiCommunicator>();
}

}  // namespace tessera
