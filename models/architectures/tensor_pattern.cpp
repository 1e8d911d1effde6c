#include "models/architectures/tensor_pattern.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "models/architectures/architecture.h"

namespace tessera {
namespace {

constexpr std::string_view kExperts = "experts.";

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

}  // namespace

TensorPattern TensorPattern::of(std::string name) {
  TensorPattern found;
  found.layer = replace_number(name, 0, kLayerIndex);
  const size_t experts = name.find(kExperts);
  const size_t expert = experts + kExperts.size();
  if (experts != std::string::npos && expert < name.size() && is_digit(name[expert])) {
    found.expert = replace_number(name, expert, kExpertIndex);
  }
  found.pattern = std::move(name);
  return found;
}

std::string TensorPattern::name_of(const char* other) const {
  std::string name = absl::StrReplaceAll(other, {{kLayerIndex, layer}});
  if (!expert.empty()) absl::StrReplaceAll({{kExpertIndex, expert}}, &name);
  return name;
}

std::vector<HeldTensor> held_tensors(const std::string& stored_name) {
  const TensorPattern stored = TensorPattern::of(stored_name);
  std::vector<HeldTensor> held;
  for (const Architecture& architecture : supported_architectures()) {
    for (const TensorRule& rule : architecture.tensors) {
      if (rule.stacked.pattern == nullptr || stored.pattern != rule.stacked.pattern) continue;
      held.push_back({stored.name_of(rule.pattern), rule.stacked.part, rule.stacked.parts});
    }
    if (!held.empty()) break;
  }
  return held;
}

std::string name_of_holder(const std::string& tensor_name) {
  const TensorPattern own = TensorPattern::of(tensor_name);
  for (const Architecture& architecture : supported_architectures()) {
    for (const TensorRule& rule : architecture.tensors) {
      if (rule.stacked.pattern != nullptr && own.pattern == rule.pattern) {
        return own.name_of(rule.stacked.pattern);
      }
    }
  }
  return tensor_name;
}

}  // namespace tessera
