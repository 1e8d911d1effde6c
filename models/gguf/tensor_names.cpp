#include "models/gguf/tensor_names.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace tessera {
namespace {

constexpr char kLayer[] = "{layer}";

using Pattern = const char* TensorRule::*;

// Replaces the first number in a name by {layer}; `layer` receives it. A name without a number is
// its own pattern.
std::string pattern_of(const std::string& name, std::string& layer) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto begin = std::find_if(name.begin(), name.end(), is_digit);
  const auto end = std::find_if_not(begin, name.end(), is_digit);
  layer.assign(begin, end);
  if (layer.empty()) return name;
  return std::string(name.begin(), begin) + kLayer + std::string(end, name.end());
}

std::string translated(const std::string& name, const Architecture& architecture, Pattern from,
                       Pattern to) {
  std::string layer;
  const std::string pattern = pattern_of(name, layer);
  for (const TensorRule& rule : architecture.tensors) {
    if (pattern == rule.*from) return absl::StrReplaceAll(rule.*to, {{kLayer, layer}});
  }
  return name;
}

}  // namespace

std::string checkpoint_name(const std::string& gguf_name, const Architecture& architecture) {
  return translated(gguf_name, architecture, &TensorRule::gguf_pattern, &TensorRule::pattern);
}

std::string gguf_name(const std::string& checkpoint_name, const Architecture& architecture) {
  return translated(checkpoint_name, architecture, &TensorRule::pattern, &TensorRule::gguf_pattern);
}

bool is_rotated(const std::string& gguf_name) {
  return absl::EndsWith(gguf_name, ".attn_q.weight") || absl::EndsWith(gguf_name, ".attn_k.weight");
}

bool belongs_to_config(const std::string& gguf_name) {
  return gguf_name == "rope_freqs.weight";
}

}  // namespace tessera
