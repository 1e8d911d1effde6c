#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cpu/backend.h"

namespace tessera {

// Where a model runs: a table of ops, and the stream of a GPU; of the CPU whoever hosts a model has
// threads of its own.
struct ComputeDevice {
  const Backend* backend = nullptr;
  Stream stream = {};
};

// "cpu", by that instruction set or the best of this machine, or "cuda". Errors: Unimplemented for
// another name; InvalidArgument for an instruction set that this machine or that device lacks;
// Unavailable with what `cuda` misses here.
absl::StatusOr<ComputeDevice> open_device(std::string_view name, std::optional<CpuIsa> isa);

}  // namespace tessera
