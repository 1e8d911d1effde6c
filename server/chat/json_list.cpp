// Lists of calls behind a marker. Granite 3: <|tool_call|>[{"name": "f", "arguments": {...}}, ...];
// versions without that token write <tool_call>. Phi-4-mini: the same up to <|/tool_call|>, or
// functools[...]. A single call may stand without its list.
#include <algorithm>
#include <utility>

#include "server/chat/json_call.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kBegin = "<|tool_call|>";
constexpr std::string_view kEnd = "<|/tool_call|>";
constexpr std::string_view kPlainBegin = "<tool_call>";
constexpr std::string_view kPlainEnd = "</tool_call>";
constexpr std::string_view kFunctools = "functools[";
constexpr std::string_view kMarkers[] = {kBegin, kPlainBegin, kFunctools};
constexpr std::string_view kEnds[] = {kEnd, kPlainEnd};
constexpr std::string_view kGraniteSigns[] = {kBegin, "<|start_of_role|>available_tools"};
constexpr std::string_view kPhi4Signs[] = {"<|tool|>", kFunctools};
constexpr std::string_view kSpecials[] = {kBegin, kEnd, kPlainBegin, kPlainEnd};

class JsonListParser final : public JsonToolParser {
 public:
  explicit JsonListParser(bool forced) : place_(forced ? Place::begin : Place::text) {}

 private:
  enum class Place : uint8_t { text, begin, call, next, end };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::text: {
        marker_ = content_until(kMarkers, end, out);
        place_ = marker_.empty() ? Place::text : marker_ == kFunctools ? Place::call : Place::begin;
        return !marker_.empty();
      }
      case Place::begin:
        skip_blanks();
        if (held_.empty()) {
          return false;
        }
        if (held_.front() == '[') {
          marker_ += '[';
          held_.erase(0, 1);
        }
        place_ = Place::call;
        return true;
      case Place::call: {
        const JsonCall::State state = read_call(marker_, out);
        place_ = state == JsonCall::State::open    ? Place::call
                 : state == JsonCall::State::ended ? Place::next
                                                   : Place::text;
        return state != JsonCall::State::open;
      }
      case Place::next:
        return read_next();
      case Place::end:
        break;
    }
    return read_end(end);
  }

  bool read_next() {
    skip_blanks();
    if (held_.empty()) {
      return false;
    }
    const bool more = held_.front() == ',';
    place_ = more ? Place::call : Place::end;
    held_.erase(0, more || held_.front() == ']' ? 1 : 0);
    return true;
  }

  bool read_end(bool end) {
    skip_blanks();
    for (const std::string_view mark : kEnds) {
      const Next next = next_is(mark, end);
      if (next == Next::unknown) {
        return false;
      }
      held_.erase(0, next == Next::yes ? mark.size() : 0);
    }
    place_ = Place::text;
    return true;
  }

  Place place_;
  std::string marker_;  // of the list
};

std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return std::make_unique<JsonListParser>(setup.forced);
}

constexpr CallLayout kLayout{.prompt = kBegin,
                             .begin = "[",
                             .before_name = R"({"name": ")",
                             .before_arguments = R"(", "arguments": )",
                             .after = "}",
                             .separator = ", ",
                             .end = "]"};

}  // namespace

const ToolFormat kGraniteFormat{.name = "granite",
                                .signs = kGraniteSigns,
                                .make_parser = make_parser,
                                .layout = kLayout,
                                .trigger = "",
                                .specials = kSpecials};

const ToolFormat kPhi4Format{.name = "phi4_mini_json",
                             .signs = kPhi4Signs,
                             .make_parser = make_parser,
                             .layout = kLayout,
                             .trigger = "",
                             .specials = kSpecials};

}  // namespace tessera
