// Hermes 2, Qwen 2.5 and 3: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
#include "server/chat/json_call.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr std::string_view kSigns[] = {kBegin};
constexpr std::string_view kSpecials[] = {kBegin, kEnd};

class HermesParser final : public JsonToolParser {
 public:
  explicit HermesParser(bool forced) : place_(forced ? Place::call : Place::text) {}

 private:
  enum class Place : uint8_t { text, call, end };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::text:
        if (content_until(kSigns, end, out).empty()) {
          return false;
        }
        place_ = Place::call;
        return true;
      case Place::call:
        return read_call(kBegin, place_, Place::end, Place::text, out);
      case Place::end:
        break;
    }
    skip_blanks();
    const Next next = next_is(kEnd, end);
    if (next == Next::unknown) {
      return false;
    }
    held_.erase(0, next == Next::yes ? kEnd.size() : 0);
    place_ = Place::text;
    return true;
  }

  Place place_;
};

std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return std::make_unique<HermesParser>(setup.forced);
}

}  // namespace

const ToolFormat kHermesFormat{.name = "hermes",
                               .signs = kSigns,
                               .make_parser = make_parser,
                               .layout = {.prompt = "<tool_call>\n",
                                          .begin = "",
                                          .before_name = R"({"name": ")",
                                          .before_arguments = R"(", "arguments": )",
                                          .after = "}\n</tool_call>",
                                          .separator = "\n<tool_call>\n",
                                          .end = ""},
                               .trigger = kBegin,
                               .specials = kSpecials};

}  // namespace tessera
