#include "server/anthropic/message_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/anthropic/block_marks.h"
#include "server/dialect/messages.h"
#include "server/json/call_arguments.h"
#include "server/json/raw_json.h"

namespace tessera {
namespace {

using nlohmann::json;

// Blocks that only Anthropic's own tools and models make. A conversation that began there can go on
// without them.
constexpr std::string_view kOfAnthropic[] = {"redacted_thinking",
                                             "server_tool_use",
                                             "web_search_tool_result",
                                             "web_fetch_tool_result",
                                             "code_execution_tool_result",
                                             "bash_code_execution_tool_result",
                                             "text_editor_code_execution_tool_result",
                                             "tool_search_tool_result",
                                             "mcp_tool_use",
                                             "mcp_tool_result"};

void add_line(std::string& text, const std::string& line) {
  text += text.empty() ? "" : "\n";
  text += line;
}

class MessageBlockReader {
 public:
  MessageBlockReader(BodyFields& fields, std::string_view body, MessageTools& tools,
                     std::vector<ChatMessage>& out, CacheControls& controls)
      : fields_(fields), body_(body), tools_(tools), out_(out), controls_(controls) {}

  // Appends the messages of the body's message with this index.
  void read(const json& message, std::size_t index) {
    const std::string place = fmt::format("messages[{}]", index);
    const json role = message.is_object() ? message.value("role", json()) : json();
    if (role != "user" && role != "assistant") {
      return fields_.refuse(place + ".role", "must be user or assistant");
    }
    index_ = index;
    raw_blocks_.clear();
    own_marks_.clear();
    any_text_ = false;
    message_ = {.role = role.get<std::string>()};
    const json content = message.value("content", json());
    if (content.is_string()) {
      message_.content = content.get<std::string>();
      any_text_ = true;
    } else if (!content.is_array() || content.empty()) {
      return fields_.refuse(place + ".content", "must be a string or a list of blocks");
    } else {
      for (std::size_t i = 0; i < content.size(); ++i) {
        const std::string here = fmt::format("{}.content[{}]", place, i);
        read_block(content[i], i, here);
        read_mark(content[i], here);
      }
    }
    const bool shown = any_text_ || !message_.tool_calls.empty() || !message_.reasoning.empty();
    if (shown) {
      out_.push_back(std::move(message_));
    }
    for (const CacheMark& mark : own_marks_) {
      controls_.mark(shown ? CacheMark{out_.size(), mark.bytes, mark.calls, mark.ttl}
                           : CacheMark{.messages = out_.size(), .ttl = mark.ttl});
    }
  }

 private:
  void read_block(const json& block, std::size_t index, const std::string& place) {
    const json type = block.is_object() ? block.value("type", json()) : json();
    const bool of_user = message_.role == "user";
    if (const std::optional<std::string> text = text_of_block(block, type, place)) {
      message_.content += any_text_ ? "\n" : "";
      message_.content += *text;
      any_text_ = true;
    } else if (type == "thinking" && !of_user) {
      message_.reasoning += text_of(block, "thinking", place);
    } else if (type == "tool_use" && !of_user) {
      read_call(block, index, place);
    } else if (type == "tool_result" && of_user) {
      read_result(block, place);
    } else if (is_left_out(type)) {
      fields_.warn(place, fmt::format("is left out: it is of the type {}", excerpt(type)));
    } else {
      fields_.refuse(place, fmt::format("is a block of the type {}, which is not supported in a "
                                        "message of the role {}",
                                        excerpt(type), message_.role));
    }
  }

  // Results of tools are messages of their own, before this one.
  void read_mark(const json& block, const std::string& place) {
    const auto ttl = read_block_control(controls_, block, place);
    if (ttl.has_value() && block.value("type", json()) == "tool_result") {
      controls_.mark({.messages = out_.size(), .ttl = *ttl});
    } else if (ttl.has_value()) {
      own_marks_.push_back(
          {.bytes = message_.content.size(), .calls = message_.tool_calls.size(), .ttl = *ttl});
    }
  }

  static bool is_left_out(const json& type) {
    return std::ranges::any_of(kOfAnthropic, [&](std::string_view one) { return type == one; });
  }

  // Returns: the text of a block with nothing but text; nothing for another block.
  std::optional<std::string> text_of_block(const json& block, const json& type,
                                           const std::string& place) {
    if (type == "text") {
      return text_of(block, "text", place);
    }
    if (type == "search_result") {
      return text_of(block, "title", place) + "\n" + text_of(block, "source", place) + "\n" +
             text_of_list(block.value("content", json()), place + ".content");
    }
    const json source = type == "document" ? block.value("source", json()) : json();
    const json kind = source.is_object() ? source.value("type", json()) : json();
    if (kind != "text" && kind != "content") {
      return std::nullopt;
    }
    const json title = block.value("title", json());
    std::string text = title.is_string() ? title.get<std::string>() + "\n" : "";
    return text += kind == "text"
                       ? text_of(source, "data", place + ".source")
                       : text_of_list(source.value("content", json()), place + ".source.content");
  }

  // Returns: a text, or the text of a list of blocks, in lines.
  std::string text_of_list(const json& list, const std::string& place) {
    if (list.is_string()) {
      return list.get<std::string>();
    }
    if (!list.is_array()) {
      fields_.refuse(place, "must be a string or a list of blocks");
      return {};
    }
    std::string text;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string here = fmt::format("{}[{}]", place, i);
      const json type = list[i].is_object() ? list[i].value("type", json()) : json();
      if (type == "tool_reference") {
        add_line(text, load_tool(text_of(list[i], "tool_name", here), here));
      } else if (const std::optional<std::string> line = text_of_block(list[i], type, here)) {
        text += i > 0 ? "\n" : "";
        text += *line;
      } else {
        fields_.refuse(here, fmt::format("is a block of the type {}, which is not supported here",
                                         excerpt(type)));
      }
    }
    return text;
  }

  // Returns: the description of a deferred tool, where it is first referred to.
  std::string load_tool(const std::string& name, const std::string& place) {
    const auto found = tools_.deferred.find(name);
    if (found == tools_.deferred.end()) {
      if (!tools_.use.has(name)) {
        fields_.warn(place, "refers to a tool that is not in tools");
      }
      return name;
    }
    return std::exchange(found->second.loaded, true) ? name : found->second.text;
  }

  void read_call(const json& block, std::size_t index, const std::string& place) {
    const std::optional<std::string> input =
        call_arguments(block.value("input", json()), [&] { return raw_input(index); });
    if (!input) {
      return fields_.refuse(place + ".input", "must be an object");
    }
    message_.tool_calls.push_back({.id = text_of(block, "id", place),
                                   .name = text_of(block, "name", place),
                                   .arguments = *input});
  }

  void read_result(const json& block, const std::string& place) {
    ChatMessage result{.role = "tool", .tool_call_id = text_of(block, "tool_use_id", place)};
    if (const json content = block.value("content", json()); !content.is_null()) {
      result.content = text_of_list(content, place + ".content");
    }
    out_.push_back(std::move(result));
  }

  // Finds the messages in the body once, and the blocks of a message too.
  std::string_view raw_input(std::size_t block) {
    if (raw_messages_.empty()) {
      raw_messages_ = raw_items(raw_member(body_, "messages"));
    }
    if (raw_blocks_.empty()) {
      raw_blocks_ = raw_items(raw_member(raw_messages_.at(index_), "content"));
    }
    return raw_member(raw_blocks_.at(block), "input");
  }

  std::string text_of(const json& block, const char* name, const std::string& place) {
    const json value = block.value(name, json());
    if (!value.is_string()) {
      fields_.refuse(place + "." + name, "must be a string");
      return {};
    }
    return value.get<std::string>();
  }

  BodyFields& fields_;
  const std::string_view body_;
  MessageTools& tools_;
  std::vector<ChatMessage>& out_;
  CacheControls& controls_;
  std::vector<CacheMark> own_marks_;  // of the message, whose place is not known yet
  ChatMessage message_;
  bool any_text_ = false;
  std::size_t index_ = 0;  // of the message
  std::vector<std::string_view> raw_messages_;
  std::vector<std::string_view> raw_blocks_;  // of the message
};

}  // namespace

void read_message_blocks(BodyFields& fields, std::string_view body, MessageTools& tools,
                         Conversation& out, CacheControls& controls) {
  read_marks_before_messages(fields, controls);
  if (fields.find("system") != nullptr) {
    ChatMessage system{.role = "system"};
    read_text_parts(fields, "system", system.content);
    out.messages.push_back(std::move(system));
  }
  const json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return fields.refuse("messages", "must be a list of at least one message");
  }
  MessageBlockReader reader(fields, body, tools, out.messages, controls);
  for (std::size_t i = 0; i < messages->size() && fields.status().ok(); ++i) {
    reader.read((*messages)[i], i);
  }
}

}  // namespace tessera
