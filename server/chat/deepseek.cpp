// DeepSeek R1 and its distilled models, with a bar of full width and a low line of its own:
// <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f, a line break, the arguments in a
// fence of JSON, <|tool_call_end|><|tool_calls_end|>. Later versions write
// <|tool_call_begin|>f<|tool_sep|>{...}<|tool_call_end|>. Templates of the distilled models print
// no tools, and plain_tools.h asks for Hermes' notation, so that is read too.
#include <algorithm>
#include <utility>

#include "server/chat/json_call.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kHermesBegin = "<tool_call>";
constexpr std::string_view kHermesEnd = "</tool_call>";
constexpr std::string_view kSigns[] = {kCallsBegin, kCallBegin};
constexpr std::string_view kMarkers[] = {kCallsBegin, kCallBegin, kHermesBegin};
constexpr std::string_view kEnds[] = {kCallEnd, kCallsEnd, kHermesEnd};
constexpr std::string_view kSpecials[] = {kCallsBegin, kCallsEnd,    kCallBegin, kCallEnd,
                                          kSeparator,  kHermesBegin, kHermesEnd};

class DeepseekParser final : public JsonToolParser {
 public:
  explicit DeepseekParser(bool forced) : place_(forced ? Place::name : Place::text) {}

 private:
  enum class Place : uint8_t { text, json, name, arguments, end };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::text: {
        const std::string_view marker = content_until(kMarkers, end, out);
        place_ = marker == kHermesBegin ? Place::json
                 : marker == kCallBegin ? Place::name
                                        : Place::text;  // a call follows the begin of the list
        return !marker.empty();
      }
      case Place::json:
        return read_call(kHermesBegin, place_, Place::end, Place::text, out);
      case Place::name:
        return read_name(end, out);
      case Place::arguments:
        if (!read_arguments(out)) {
          return false;
        }
        place_ = Place::end;
        return true;
      case Place::end:
        break;
    }
    return read_end(end);
  }

  // function<|tool_sep|>f\n```json\n{ or f<|tool_sep|>{
  bool read_name(bool end, AnswerPart& out) {
    const std::size_t brace = held_.find('{');
    if (brace == std::string::npos && !end && held_.size() <= kLongestName) {
      return false;
    }
    std::string name = held_.substr(0, brace);
    const std::size_t separator = name.find(kSeparator);
    if (separator != std::string::npos) {
      const std::string behind = name.substr(separator + kSeparator.size());
      name = behind.find_first_not_of(" \t\r\n`") == std::string::npos ? name.substr(0, separator)
                                                                       : behind;
    }
    name.erase(0, name.find_first_not_of(" \t\r\n"));
    name.resize(std::min(name.size(), name.find_first_of(" \t\r\n`")));
    if (brace == std::string::npos || name.empty()) {
      out.content += std::string(kCallBegin) + std::exchange(held_, {});
      place_ = Place::text;
      return false;
    }
    held_.erase(0, brace);
    begin_call(std::move(name), out);
    place_ = Place::arguments;
    return true;
  }

  // The fence of the arguments, and the ends of the call and of the list.
  bool read_end(bool end) {
    held_.erase(0, held_.find_first_not_of(" \t\r\n`"));
    for (const std::string_view mark : kEnds) {
      const Next next = next_is(mark, end);
      if (next == Next::unknown) {
        return false;
      }
      if (next == Next::yes) {
        held_.erase(0, mark.size());
        return true;
      }
    }
    place_ = Place::text;
    return true;
  }

  static constexpr std::size_t kLongestName = 512;
  Place place_;
};

std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return std::make_unique<DeepseekParser>(setup.forced);
}

}  // namespace

const ToolFormat kDeepseekFormat{
    .name = "deepseek_v3",
    .signs = kSigns,
    .make_parser = make_parser,
    .layout = {.prompt = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
               .begin = "",
               .before_name = "",
               .before_arguments = "\n```json\n",
               .after = "\n```",
               .separator = "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
               .end = ""},
    .trigger = "",
    .specials = kSpecials};

}  // namespace tessera
