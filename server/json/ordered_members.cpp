#include "server/json/ordered_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/json/body_fields.h"

namespace tessera {

namespace {

using Json = nlohmann::ordered_json;
using Event = Json::parse_event_t;

// Decides which members the library keeps, and stops input that would take it long: its time grows
// with the square of an object's keys, and of a list's objects.
class MemberFilter {
 public:
  explicit MemberFilter(std::span<const std::string_view> names) : names_(names) {}

  bool keeps(int depth, Event event, Json& parsed) {
    if (!error_.empty()) {
      return false;
    }
    if (depth == 1 && event == Event::key) {
      member_ = parsed.get<std::string>();
      wanted_ = std::find(names_.begin(), names_.end(), member_) != names_.end();
      values_ = 0;
      return wanted_;
    }
    if (wanted_) {
      count(event);
    }
    return error_.empty();
  }

  const std::string& error() const { return error_; }

 private:
  struct Container {
    bool list;
    int items = 0;
  };

  void count(Event event) {
    if (event == Event::object_end || event == Event::array_end) {
      if (!open_.empty()) {  // not the body
        open_.pop_back();
      }
      return;
    }
    if (event == Event::key || (!open_.empty() && open_.back().list)) {
      add_item(open_.back());
    }
    if (event != Event::key && ++values_ > kMaxOrderedValues) {
      error_ = fmt::format("{} has more than {} values", member_, kMaxOrderedValues);
    }
    if (event == Event::object_start || event == Event::array_start) {
      open_.push_back({.list = event == Event::array_start});
    }
  }

  void add_item(Container& container) {
    const int limit = container.list ? kMaxOrderedItems : kMaxOrderedKeys;
    if (++container.items > limit) {
      error_ = container.list
                   ? fmt::format("{} has a list of more than {} items", member_, limit)
                   : fmt::format("{} has an object of more than {} keys", member_, limit);
    }
  }

  const std::span<const std::string_view> names_;
  std::string member_;  // of the body
  bool wanted_ = false;
  int values_ = 0;               // in the member
  std::vector<Container> open_;  // in the member
  std::string error_;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> ordered_members(std::string_view body,
                                                       std::span<const std::string_view> names) {
  MemberFilter filter(names);
  Json members = Json::parse(
      body,
      [&](int depth, Event event, Json& parsed) { return filter.keeps(depth, event, parsed); },
      /*allow_exceptions=*/false);
  if (!filter.error().empty()) {
    return absl::InvalidArgumentError(filter.error());
  }
  return members;
}

absl::StatusOr<nlohmann::ordered_json> parse_ordered(std::string_view text) {
  constexpr std::string_view kValue[] = {"value"};
  const std::string wrapped = fmt::format("{{\"value\":{}}}", text);
  TESSERA_RETURN_IF_ERROR(parse_object(wrapped).status());
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json members, ordered_members(wrapped, kValue));
  return members.at("value");
}

}  // namespace tessera
