#include "models/gguf/tensor_names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "models/architectures/tensor_pattern.h"

namespace tessera {
namespace {

using Pattern = const char* TensorRule::*;

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string translated(const std::string& name, const Architecture& architecture, Pattern from,
                       Pattern to) {
  TensorPattern own = TensorPattern::of(name);
  own.expert.clear();  // of all experts alike
  for (const TensorRule& rule : architecture.tensors) {
    if (rule.*from == nullptr || rule.*to == nullptr) continue;
    if (own.pattern == rule.*from) return own.name_of(rule.*to);
  }
  return name;
}

// Files of before April 2024 have a tensor for each expert: "blk.3.ffn_up.5.weight".
// Returns: the number of the expert, and renames the tensor to that of all experts; empty if the
// tensor is of no single expert.
std::string take_expert(std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  constexpr size_t kParts = 5;
  if (parts.size() != kParts || !absl::StartsWith(parts[2], "ffn_") || !is_number(parts[3])) {
    return {};
  }
  name = absl::StrCat(parts[0], ".", parts[1], ".", parts[2], "_exps.", parts[4]);
  return parts[3];
}

}  // namespace

std::string checkpoint_name(const std::string& gguf_name, const Architecture& architecture) {
  std::string stacked = gguf_name;
  const std::string expert = take_expert(stacked);
  std::string own =
      translated(stacked, architecture, &TensorRule::gguf_pattern, &TensorRule::pattern);
  if (!expert.empty()) absl::StrReplaceAll({{kExpertIndex, expert}}, &own);
  return own;
}

std::string gguf_name(const std::string& checkpoint_name, const Architecture& architecture) {
  return translated(checkpoint_name, architecture, &TensorRule::pattern, &TensorRule::gguf_pattern);
}

bool is_rotated(const std::string& gguf_name) {
  return absl::StrContains(gguf_name, ".attn_q.") || absl::StrContains(gguf_name, ".attn_k.");
}

bool is_one_row(const std::string& gguf_name) {
  return absl::EndsWith(gguf_name, ".ffn_gate_inp_shexp.weight");
}

bool belongs_to_config(const std::string& gguf_name) {
  return gguf_name == kGgufRopeFactors || gguf_name == kGgufShortFactors ||
         gguf_name == kGgufLongFactors;
}

}  // namespace tessera
