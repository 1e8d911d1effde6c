#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace tessera {

// Writes a Hugging Face directory with the weights of a llama2.c checkpoint (version 0, tied head).
// llama2.c rotates neighbouring pairs of a head's channels, Hugging Face pairs of its two halves.
// The rows of the query and key projections are therefore permuted.
absl::Status convert_llama2c(const std::filesystem::path& file,
                             const std::filesystem::path& directory);

}  // namespace tessera
