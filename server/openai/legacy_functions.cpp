#include "server/openai/legacy_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/dialect/conversation_fields.h"
#include "server/dialect/grammar_fields.h"
#include "server/json/body_fields.h"
#include "server/json/ordered_members.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

template <class Json>
bool given(const Json& object, std::string_view name) {
  const auto at = object.find(name);
  return at != object.end() && !at->is_null();
}

bool is_legacy_message(const json& message) {
  return message.is_object() &&
         (given(message, "function_call") || message.value("role", json()) == "function");
}

// Returns: the id of the call in a message: nine letters and digits, for Mistral's templates.
std::string call_id(std::size_t message) {
  return fmt::format("call{:05}", message % 100'000);
}

// Returns: the functions as tools.
absl::StatusOr<Ordered> tools_of(const Ordered& functions) {
  if (!functions.is_array() || functions.size() > kMaxTools) {
    return invalid_field("functions",
                         fmt::format("functions must be a list of at most {}", kMaxTools));
  }
  Ordered tools = Ordered::array();
  for (const Ordered& function : functions) {
    tools.push_back({{"type", "function"}, {"function", function}});
  }
  return tools;
}

// Turns `functions` and `function_call` into `tools` and `tool_choice`. `members`: those whose keys
// keep their order.
absl::Status replace_functions(json& body, Ordered& members) {
  if (!given(body, "functions") && !given(body, "function_call")) {
    return absl::OkStatus();
  }
  for (const char* newer : {"tools", "tool_choice"}) {
    if (given(body, newer)) {
      return invalid_field("functions", fmt::format("functions cannot be combined with {}", newer));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      Ordered tools,
      tools_of(given(body, "functions") ? members.at("functions") : Ordered::array()));
  const json choice = given(body, "function_call") ? body.at("function_call") : json("auto");
  const bool named = choice.is_object() && choice.contains("name") && choice.at("name").is_string();
  if (choice != "auto" && choice != "none" && !named) {
    return invalid_field("function_call",
                         "function_call must be none, auto, or an object with a function's name");
  }
  if (named) {
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice.at("name")}}}};
  } else if (!tools.empty()) {
    body["tool_choice"] = choice;
  }
  if (!tools.empty()) {
    body["parallel_tool_calls"] = false;
    members["tools"] = std::move(tools);
  }
  return absl::OkStatus();
}

// Turns the calls of earlier answers and their results into those of tools.
absl::Status replace_in_messages(json& messages) {
  std::string last_id = call_id(0);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    json& message = messages[i];
    if (!message.is_object()) {
      continue;
    }
    if (given(message, "function_call")) {
      if (given(message, "tool_calls")) {
        const std::string place = fmt::format("messages[{}].function_call", i);
        return invalid_field(place, place + " cannot be combined with tool_calls");
      }
      last_id = call_id(i);
      json call = {{"id", last_id}, {"type", "function"}};
      call["function"] = std::move(message["function_call"]);
      message["tool_calls"] = json::array({std::move(call)});
    }
    message.erase("function_call");
    if (message.value("role", json()) == "function") {
      message["role"] = "tool";
      message["tool_call_id"] = last_id;
    }
  }
  return absl::OkStatus();
}

// Returns: the text of both objects as one. A long object cannot become an Ordered: each of its
// keys is looked up among all of them.
std::string print_together(const json& body, const Ordered& members) {
  std::string text = body.dump();
  if (!members.empty()) {
    text.pop_back();
    text += body.empty() ? "" : ",";
    text += members.dump().substr(1);
  }
  return text;
}

}  // namespace

bool has_legacy_functions(const json& body) {
  if (given(body, "functions") || given(body, "function_call")) {
    return true;
  }
  const auto messages = body.find("messages");
  return messages != body.end() && messages->is_array() &&
         std::any_of(messages->begin(), messages->end(), is_legacy_message);
}

absl::StatusOr<std::string> with_tools(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(json object, parse_body(body));
  // The members whose keys must keep their order.
  std::vector<std::string_view> names(std::begin(kGrammarMembers), std::end(kGrammarMembers));
  names.insert(names.end(), std::begin(kConversationMembers), std::end(kConversationMembers));
  names.emplace_back("functions");
  TESSERA_ASSIGN_OR_RETURN(Ordered members, ordered_members(body, names));
  TESSERA_RETURN_IF_ERROR(replace_functions(object, members));
  names.emplace_back("function_call");
  for (const std::string_view name : names) {
    object.erase(std::string(name));
  }
  members.erase("functions");
  if (given(object, "messages") && object.at("messages").is_array()) {
    TESSERA_RETURN_IF_ERROR(replace_in_messages(object.at("messages")));
  }
  return print_together(object, members);
}

absl::Status in_legacy_terms(const absl::Status& status) {
  const auto renamed = [](absl::string_view text) {
    return absl::StrReplaceAll(text, {{"tools[", "functions["},
                                      {"].function.", "]."},
                                      {"tool_choice", "function_call"},
                                      {"in tools", "in functions"}});
  };
  absl::Status made(status.code(), renamed(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    made.SetPayload(url, absl::Cord(renamed(std::string(payload))));
  });
  return made;
}

}  // namespace tessera
