#include "server/start/ranks.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/cpu/mpi/mpi_communicator.h"
#include "kernels/cpu/threads/core_share.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/cuda_library.h"
#include "server/start/model_parts.h"

namespace tessera {
namespace {

// Makes only the rank's own GPU visible, because the library takes the first visible one. The
// launcher shows one GPU for each rank of this machine, or already only the rank's own.
void restrict_to_own_gpu(int32_t local_rank) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  std::string own = fmt::format("{}", local_rank);
  if (const char* visible = std::getenv(kVisible); visible != nullptr) {
    const std::vector<std::string> gpus = absl::StrSplit(std::string(visible), ',');
    own = gpus.size() == 1 ? gpus[0]
          : static_cast<std::size_t>(local_rank) < gpus.size()
              ? gpus[static_cast<std::size_t>(local_rank)]
              : "";
  }
  setenv(kVisible, own.c_str(), 1);
}

absl::StatusOr<std::unique_ptr<Communicator>> connect_gpus(std::unique_ptr<Communicator> hosts) {
  restrict_to_own_gpu(local_rank(*hosts));
  const CudaLibrary cuda = open_cuda_library();
  if (cuda.backend == nullptr) {
    return absl::UnimplementedError(fmt::format("device: {}; use --device cpu", cuda.error));
  }
  if (cuda.connect == nullptr) {
    return absl::UnimplementedError(
        "tensor-parallel: the CUDA backend was built without NCCL, which connects ranks on GPUs");
  }
  return cuda.connect(std::move(hosts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> join_ranks(const Settings& settings) {
  const int32_t wanted = settings.tensor_parallel;
  if (wanted == 1) {
    if (const int32_t launched = launched_processes(); launched > 1) {
      return absl::InvalidArgumentError(
          fmt::format("tensor-parallel is 1, but the launcher has started {} processes, each of "
                      "which would serve by itself: say --tensor-parallel {}",
                      launched, launched));
    }
    return nullptr;
  }
  std::unique_ptr<Communicator> ranks = make_mpi_communicator();
  if (ranks == nullptr) {
    return absl::UnimplementedError(
        "tensor-parallel: this build has no MPI, which connects the ranks");
  }
  if (ranks->ranks() != wanted) {
    return absl::InvalidArgumentError(fmt::format(
        "tensor-parallel is {}, but the launcher has started {}{}: mpirun -n {} tessera-server "
        "starts as many",
        wanted, ranks->ranks(), ranks->ranks() == 1 ? " process" : " processes", wanted));
  }
  take_own_cores(*ranks);
  if (settings.device == Device::cuda) {
    return connect_gpus(std::move(ranks));
  }
  return ranks;
}

absl::Status follow(const Settings& settings, Communicator& ranks) {
  ThreadPool pool(settings.threads);
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           load_engine(settings, nullptr, pool, &ranks));
  spdlog::info("follows");
  engine->follow();
  spdlog::info("stopped");
  return absl::OkStatus();
}

}  // namespace tessera
