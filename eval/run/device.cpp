#include "eval/run/device.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda_library.h"

namespace tessera {

absl::StatusOr<ComputeDevice> open_device(std::string_view device, std::optional<CpuIsa> isa) {
  if (device == "cpu") {
    if (isa && !cpu_supports(*isa)) {
      return absl::InvalidArgumentError(
          absl::StrCat("this machine has no ", std::string(name(*isa))));
    }
    return ComputeDevice{.backend = &cpu_backend(isa.value_or(best_cpu_isa()))};
  }
  if (device != "cuda") {
    return absl::UnimplementedError(
        absl::StrCat("there is no device '", std::string(device), "'; there are cpu and cuda"));
  }
  if (isa) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda has no instruction set ", std::string(name(*isa)), " to choose"));
  }
  const CudaLibrary library = open_cuda_library();
  if (library.backend == nullptr) {
    return absl::UnavailableError(absl::StrCat("cuda: ", library.error));
  }
  return ComputeDevice{library.backend, library.stream};
}

}  // namespace tessera
