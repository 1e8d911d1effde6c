#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera {

// Device that a model runs on: a table of ops, and the stream of a GPU. On the CPU, the host of a
// model has threads of its own.
struct ComputeDevice {
  const Backend* backend = nullptr;
  Stream stream = {};
};

// Returns: "cpu" with the given instruction set, or with the best one of this machine, or "cuda".
// Errors: Unimplemented for another name. InvalidArgument for an instruction set that this machine
// or that device lacks. Unavailable with the part that `cuda` lacks here.
absl::StatusOr<ComputeDevice> open_device(std::string_view name, std::optional<CpuIsa> isa);

}  // namespace tessera
