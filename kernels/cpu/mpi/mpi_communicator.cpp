#include "kernels/cpu/mpi/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <thread>

#include "kernels/check.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// MPI's own waiting looks without a pause, for hours behind an idle leader, and where ranks share
// cores it keeps the others from what they are waited for: 20 times longer for small sums of 4
// ranks on 4 busy cores. So a rank looks for as long as a sum takes at most where every rank has
// its cores, and then sleeps between two looks, at first for the shortest pause.
constexpr std::chrono::microseconds kLookTime{200};
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{100};        // within a step
constexpr std::chrono::microseconds kLongestIdlePause{2'000};  // before one

int count(size_t items) {
  TESSERA_CHECK(items <= std::numeric_limits<int>::max(), "MPI counts by int");
  return static_cast<int>(items);
}

void wait(MPI_Request request, std::chrono::microseconds longest_pause) {
  const Clock::time_point begin = Clock::now();
  std::chrono::microseconds pause = kShortestPause;
  while (true) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) {
      return;
    }
    if (Clock::now() - begin < kLookTime) {
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
}

// MPI's default is to end all ranks at the first error, so no call here returns one.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    TESSERA_CHECK(provided >= MPI_THREAD_SERIALIZED, "MPI allows one thread alone to use it");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > 0) {
      abort();  // the others may wait for this one, and ending MPI would wait for them
    }
    MPI_Finalize();
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return ranks_; }

  // Ops of the CPU have returned when their results stand, so there is no stream to wait for.
  void all_reduce_sum(std::span<float> numbers, Stream /*stream*/) override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, numbers.data(), count(numbers.size()), MPI_FLOAT, MPI_SUM,
                   MPI_COMM_WORLD, &request);
    wait(request, kLongestPause);
  }

  bool records_sums() const override { return false; }

  void broadcast(std::span<std::byte> bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(bytes.data(), count(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD, &request);
    wait(request, kLongestIdlePause);
  }

  void all_gather(std::span<const int64_t> own, std::span<int64_t> all) override {
    TESSERA_CHECK(all.size() == own.size() * static_cast<size_t>(ranks_), "room for every rank's");
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(own.data(), count(own.size()), MPI_INT64_T, all.data(), count(own.size()),
                   MPI_INT64_T, MPI_COMM_WORLD, &request);
    wait(request, kLongestPause);
  }

  [[noreturn]] void abort() override {
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    std::abort();
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
