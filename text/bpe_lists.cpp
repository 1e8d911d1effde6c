#include "text/bpe_lists.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/json_file.h"

namespace tessera {
namespace {

std::string_view view_of(const nlohmann::json& text) {
  return text.get_ref<const std::string&>();
}

// A merge is written as "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string_view, std::string_view>> merge_sides(
    const nlohmann::json& item, size_t rank) {
  if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
    return std::pair(view_of(item[0]), view_of(item[1]));
  }
  if (item.is_string()) return split_merge(view_of(item), rank);
  return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " is no pair"));
}

}  // namespace

absl::StatusOr<std::pair<std::string_view, std::string_view>> split_merge(std::string_view text,
                                                                          size_t rank) {
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", rank, " \"", std::string(text), "\" is no pair"));
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::StatusOr<BpeLists> read_bpe_lists(const nlohmann::json& model) {
  BpeLists lists;
  const nlohmann::json& vocabulary = json_member(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) {
    return absl::InvalidArgumentError("model without \"vocab\"");
  }
  lists.tokens.reserve(vocabulary.size());
  for (const auto& [text, value] : vocabulary.get_ref<const nlohmann::json::object_t&>()) {
    TESSERA_ASSIGN_OR_RETURN(const int32_t id, json_token_id(value, "\"" + text + "\""));
    lists.tokens.push_back({text, id});
  }
  const nlohmann::json& merges = json_member(model, "merges");
  if (!merges.is_array()) return absl::InvalidArgumentError("model without a list \"merges\"");
  lists.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(lists.merges.emplace_back(), merge_sides(merges[rank], rank));
  }
  return lists;
}

}  // namespace tessera
