#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace tessera {

// Writes a Hugging Face directory with the weights of a llama2.c checkpoint (version 0, tied head).
// llama2.c turns neighbouring pairs of a head's channels, Hugging Face the two halves, so the rows
// of the query and key projections change places.
absl::Status convert_llama2c(const std::filesystem::path& file,
                             const std::filesystem::path& directory);

}  // namespace tessera
