#include "models/gguf/tensor_names.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr char kLayer[] = "{layer}";
constexpr std::string_view kExperts = "experts.";

using Pattern = const char* TensorRule::*;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Replaces the first number at or behind `from` by an index such as {layer}.
// Returns: the number; empty if there is none.
std::string replace_number(std::string& name, size_t from, const char* index) {
  const auto begin =
      std::find_if(name.begin() + static_cast<std::ptrdiff_t>(from), name.end(), is_digit);
  const auto end = std::find_if_not(begin, name.end(), is_digit);
  std::string number(begin, end);
  if (!number.empty()) name.replace(begin, end, index);
  return number;
}

// Replaces the numbers of layer and expert by {layer} and {expert}; `layer` receives the former.
std::string pattern_of(std::string name, std::string& layer) {
  layer = replace_number(name, 0, kLayer);
  const size_t found = name.find(kExperts);
  const size_t expert = found + kExperts.size();
  if (found != std::string::npos && expert < name.size() && is_digit(name[expert])) {
    replace_number(name, expert, kExpertIndex);
  }
  return name;
}

std::string translated(const std::string& name, const Architecture& architecture, Pattern from,
                       Pattern to) {
  std::string layer;
  const std::string pattern = pattern_of(name, layer);
  for (const TensorRule& rule : architecture.tensors) {
    if (rule.*from == nullptr || rule.*to == nullptr) continue;
    if (pattern == rule.*from) return absl::StrReplaceAll(rule.*to, {{kLayer, layer}});
  }
  return name;
}

// Files of before April 2024 have a tensor for each expert: "blk.3.ffn_up.5.weight".
// Returns: the number of the expert, and renames the tensor to that of all experts; empty if the
// tensor is of no single expert.
std::string take_expert(std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  constexpr size_t kParts = 5;
  if (parts.size() != kParts || !absl::StartsWith(parts[2], "ffn_") || parts[3].empty() ||
      !std::all_of(parts[3].begin(), parts[3].end(), is_digit)) {
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

bool belongs_to_config(const std::string& gguf_name) {
  return gguf_name == kGgufRopeFactors || gguf_name == kGgufShortFactors ||
         gguf_name == kGgufLongFactors;
}

}  // namespace tessera
