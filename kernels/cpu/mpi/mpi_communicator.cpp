#include "kernels/cpu/mpi/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <thread>

#include "base/check.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// MPI waits by polling without a pause, for hours if the leader is idle. If ranks share cores,
// polling delays the ranks that are waited for. Small sums of 4 ranks on 4 busy cores take 20 times
// longer. A rank therefore polls for kLookTime, the longest time of a sum if every rank has its own
// cores. After that it sleeps between two polls, at first for kShortestPause.
constexpr std::chrono::microseconds kLookTime{200};
constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{100};        // within a step
constexpr std::chrono::microseconds kLongestIdlePause{2'000};  // before a step

int count(size_t items) {
  TESSERA_CHECK(items <= std::numeric_limits<int>::max(), "MPI counts must fit into an int");
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

// By default MPI ends all ranks at the first error, so no call here returns an error.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    TESSERA_CHECK(provided >= MPI_THREAD_SERIALIZED, "MPI lacks MPI_THREAD_SERIALIZED");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > 0) {
      abort();  // other ranks may wait for this one, and MPI_Finalize would wait for them
    }
    MPI_Finalize();
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return ranks_; }

  // CPU ops are complete when they return, so there is no stream to wait for.
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
    TESSERA_CHECK(all.size() == own.size() * static_cast<size_t>(ranks_), "all_gather: wrong size");
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
