#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// Sampling parameters that a model's authors recommend, by their names in generation_config.json:
// temperature, top_p, top_k, min_p, typical_p and repetition_penalty, as far as the files have
// them.
using RecommendedSampling = std::map<std::string, double>;

// Reads generation_config.json of a Hugging Face directory, or the keys general.sampling.* of a
// GGUF file. A directory without the file recommends nothing.
// Errors: those of find_gguf and GgufModel::open; InvalidArgument for a value that is no number,
// with file and key.
absl::StatusOr<RecommendedSampling> read_recommended_sampling(const std::filesystem::path& model);

}  // namespace tessera
