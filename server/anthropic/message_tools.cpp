#include "server/anthropic/message_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/anthropic/client_tools.h"
#include "server/dialect/tool_fields.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

// A tool of the client.
struct OwnTool {
  Ordered given;
  std::string place;
  bool deferred;
};

// A tool in OpenAI's shape, which templates expect. A placeholder may have no schema.
Ordered openai_function(const Ordered& tool) {
  Ordered function = Ordered::object();
  for (const auto& [from, to] : {std::pair{"name", "name"},
                                 {"description", "description"},
                                 {"input_schema", "parameters"}}) {
    if (const auto at = tool.find(from); at != tool.end() && !at->is_null()) {
      function[to] = *at;
    }
  }
  if (!function.contains("parameters")) {
    function["parameters"] = {{"type", "object"}, {"properties", Ordered::object()}};
  }
  if (tool.value("strict", Ordered()) == true) {
    function["strict"] = true;
  }
  return function;
}

// Collects the client's tools. Returns: true if the server would have to search the deferred ones.
bool list_own_tools(BodyFields& fields, const Ordered& tools, ToolReader& reader,
                    std::vector<OwnTool>& out) {
  bool searches = false;
  std::size_t i = 0;
  for (const Ordered& tool : tools) {
    const std::string place = fmt::format("tools[{}]", i++);
    Ordered type = tool.is_object() ? tool.value("type", Ordered()) : Ordered(0);
    type = type.is_null() ? Ordered("custom") : type;
    if (!type.is_string()) {
      fields.refuse(place, "must be an object with a type that is a text");
    } else if (type == "custom") {
      out.push_back({tool, place, tool.value("defer_loading", Ordered()) == true});
    } else if (auto described = described_client_tool(type.get_ref<const std::string&>(), tool)) {
      const bool deferred = described->value("defer_loading", Ordered()) == true;
      out.push_back({*std::move(described), place, deferred});
    } else {
      searches = searches || type.get_ref<const std::string&>().starts_with("tool_search_tool");
      reader.leave_out(type, place);
    }
  }
  return searches;
}

}  // namespace

MessageTools read_message_tools(BodyFields& fields, const Ordered& ordered) {
  MessageTools out;
  const json* given = fields.find("tools");
  if (given == nullptr) {
    return out;
  }
  if (!given->is_array() || given->size() > kMaxTools) {
    fields.refuse("tools", fmt::format("must be a list of at most {} tools", kMaxTools));
    return out;
  }
  ToolReader reader(fields, out.use, out.texts);
  std::vector<OwnTool> own;
  const bool at_once = list_own_tools(fields, ordered.at("tools"), reader, own) ||
                       std::ranges::all_of(own, &OwnTool::deferred);
  for (const OwnTool& tool : own) {
    const Ordered schema = tool.given.value("input_schema", Ordered());
    if (!schema.is_null() && !schema.is_object()) {
      fields.refuse(tool.place + ".input_schema", "must be a JSON schema, an object");
      break;
    }
    reader.add_function(openai_function(tool.given), tool.place);
    if (!fields.status().ok()) {
      break;
    }
    if (tool.deferred && !at_once) {
      const std::string name = out.use.tools.back().name;
      out.deferred[name] = {std::move(out.use.tools.back()), std::move(out.texts.back())};
      out.use.tools.pop_back();
      out.texts.pop_back();
    }
  }
  return out;
}

void read_message_choice(BodyFields& fields, MessageTools& tools) {
  using Choice = ToolUse::Choice;
  ToolUse& use = tools.use;
  for (const auto& [name, deferred] : tools.deferred) {
    if (deferred.loaded) {
      use.tools.push_back(deferred.tool);
    }
  }
  const json* given = fields.find("tool_choice");
  if (given == nullptr) {
    return;
  }
  const json type = given->is_object() ? given->value("type", json()) : json();
  if (type != "auto" && type != "any" && type != "tool" && type != "none") {
    return fields.refuse("tool_choice.type", "must be auto, any, tool or none");
  }
  use.parallel = given->value("disable_parallel_tool_use", json()) != true;
  use.choice = type == "none" ? Choice::none : type == "any" ? Choice::required : use.choice;
  const bool possible = type == "tool" ? require_tool(given->value("name", json()), use)
                                       : type != "any" || !use.tools.empty();
  if (!possible) {
    fields.refuse(
        "tool_choice",
        "requires a call of a tool that is not in tools or that this server does not run");
  }
}

}  // namespace tessera
