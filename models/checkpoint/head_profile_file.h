#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kv/head_profile.h"

namespace tessera {

// The loss of each row (layer and KV head) of a model if that row alone keeps the newest tokens
// only. It is the divergence of the next token's distribution, in nats. `tessera-eval --profile`
// measures it (eval/head_losses.h), and writes it as JSON beside the checkpoint.
struct HeadLosses {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  std::vector<float> losses;  // [layers, kv_heads], not negative
  std::string measured;       // how, in a sentence
};

// Returns: DIRECTORY/head_profile.json, or FILE.head_profile.json of a GGUF file.
std::filesystem::path head_profile_path(const std::filesystem::path& model);

// Returns: the rows of the profile at that path, [layers, kv_heads]; empty if there is no file.
// Errors: InvalidArgument names the file and the field: not JSON, another number of layers or KV
// heads, a loss that is out of range. Those of reading a file.
absl::StatusOr<std::vector<HeadProfile>> read_head_profiles(const std::filesystem::path& path,
                                                            int32_t layers, int32_t kv_heads);

// Returns: the place of each row. Of equal losses the earlier row comes first.
// Requires: losses that are not negative.
std::vector<HeadProfile> head_profiles(std::span<const float> losses);

// Returns: the contents of the file.
std::string print_head_losses(const HeadLosses& losses);

}  // namespace tessera
