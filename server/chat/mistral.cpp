// Mistral: [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...], and since tokenizer version 11
// [TOOL_CALLS]f[ARGS]{...} for each call.
#include <algorithm>
#include <utility>

#include "server/base/unique_id.h"
#include "server/chat/json_call.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kBegin = "[TOOL_CALLS]";
constexpr std::string_view kArguments = "[ARGS]";
constexpr std::string_view kId = "[CALL_ID]";
constexpr std::string_view kSigns[] = {kBegin};
constexpr std::string_view kSpecials[] = {kBegin, kArguments, kId};

class MistralParser final : public JsonToolParser {
 public:
  explicit MistralParser(bool forced) : place_(forced ? Place::begin : Place::text) {}

 private:
  enum class Place : uint8_t { text, begin, call, next, name, arguments };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::text:
        if (content_until(kSigns, end, out).empty()) {
          return false;
        }
        place_ = Place::begin;
        return true;
      case Place::begin:
        skip_blanks();
        if (held_.empty()) {
          return false;
        }
        place_ = held_.front() == '[' ? Place::call : Place::name;
        held_.erase(0, held_.front() == '[' ? 1 : 0);
        return true;
      case Place::call: {
        const JsonCall::State state = read_call("[TOOL_CALLS][", out);
        place_ = state == JsonCall::State::open    ? Place::call
                 : state == JsonCall::State::ended ? Place::next
                                                   : Place::text;
        return state != JsonCall::State::open;
      }
      case Place::next:
        return next_call();
      case Place::name:
        return read_name(end, out);
      case Place::arguments:
        break;
    }
    if (!read_arguments(out)) {
      return false;
    }
    place_ = Place::text;
    return true;
  }

  bool next_call() {
    skip_blanks();
    if (held_.empty()) {
      return false;
    }
    place_ = held_.front() == ',' ? Place::call : Place::text;
    held_.erase(0, held_.front() == ',' || held_.front() == ']' ? 1 : 0);
    return true;
  }

  // f[ARGS]{, f[CALL_ID]id[ARGS]{ or f{
  bool read_name(bool end, AnswerPart& out) {
    const std::size_t brace = held_.find('{');
    if (brace == std::string::npos) {
      if (end || held_.size() > kLongestName) {
        out.content += std::string(kBegin) + std::exchange(held_, {});
        place_ = Place::text;
      }
      return false;
    }
    std::string name = held_.substr(0, brace);
    name.resize(std::min({name.size(), name.find(kArguments), name.find(kId)}));
    name.resize(name.find_last_not_of(" \t\r\n") + 1);
    held_.erase(0, brace);
    begin_call(std::move(name), out);
    place_ = Place::arguments;
    return true;
  }

  std::string make_id() const override { return unique_letters(9); }

  static constexpr std::size_t kLongestName = 512;  // with its id
  Place place_;
};

std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return std::make_unique<MistralParser>(setup.forced);
}

}  // namespace

const ToolFormat kMistralFormat{.name = "mistral",
                                .signs = kSigns,
                                .make_parser = make_parser,
                                .layout = {.prompt = kBegin,
                                           .begin = "[",
                                           .before_name = R"({"name": ")",
                                           .before_arguments = R"(", "arguments": )",
                                           .after = "}",
                                           .separator = ", ",
                                           .end = "]"},
                                .trigger = "",
                                .specials = kSpecials};

}  // namespace tessera
