// Llama 3.1 to 3.3: {"name": "f", "parameters": {...}}, also after <|python_tag|>. Semicolons
// separate several calls.
#include "server/chat/llama_json.h"

#include <algorithm>

#include "server/chat/json_call.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";
constexpr std::string_view kSigns[] = {kTag, "<|eom_id|>",
                                       R"({"name": function name, "parameters")"};
constexpr std::string_view kSpecials[] = {kTag};

class LlamaJsonParser final : public JsonToolParser {
  enum class Place : uint8_t { first, call, next, text };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::first:
      case Place::next:
        return begin(end);
      case Place::call: {
        const JsonCall::State state = read_call("", out);
        place_ = state == JsonCall::State::open    ? Place::call
                 : state == JsonCall::State::ended ? Place::next
                                                   : Place::text;
        return state != JsonCall::State::open;
      }
      case Place::text:
        break;
    }
    if (content_until(kSpecials, end, out).empty()) {
      return false;
    }
    place_ = Place::call;
    return true;
  }

  // A call may begin here; anything else is content.
  bool begin(bool end) {
    const std::size_t blanks = held_.find_first_not_of(" \t\r\n;");
    if (blanks == std::string::npos && !end) {
      return false;
    }
    const std::string_view rest = std::string_view(held_).substr(std::min(blanks, held_.size()));
    if (!end && kTag.starts_with(rest)) {
      return false;
    }
    place_ = rest.starts_with('{') ? Place::call : Place::text;
    held_.erase(0, place_ == Place::call ? blanks : 0);
    return true;
  }

  Place place_ = Place::first;
};

}  // namespace

std::unique_ptr<ToolParser> make_llama_json_parser(const ParserSetup& /*setup*/) {
  return std::make_unique<LlamaJsonParser>();
}

const ToolFormat kLlamaJsonFormat{.name = "llama3_json",
                                  .signs = kSigns,
                                  .make_parser = make_llama_json_parser,
                                  .layout = kLlamaJsonLayout,
                                  .trigger = "",
                                  .specials = kSpecials};

}  // namespace tessera
