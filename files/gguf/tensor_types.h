#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "files/stored_tensor.h"

namespace tessera {

// Returns: the tensor type with this number in a GGUF file.
// Errors: Unimplemented for a type of the format that is not supported, InvalidArgument for a
// number that the format does not have; each names the type and the supported ones.
absl::StatusOr<TensorType> gguf_tensor_type(uint32_t number);

}  // namespace tessera
