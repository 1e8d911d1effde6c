// Qwen3-Coder: <tool_call>\n<function=f>\n<parameter=city>\nParis\n</parameter>\n</function>\n
// </tool_call>. Values have no quotes: their types are those of the tool's schema. Texts are shown
// as they come, other values when they are complete. The models leave <tool_call> out at times, and
// some write JSON in it.
#include <algorithm>
#include <utility>

#include "server/chat/argument_types.h"
#include "server/chat/json_call.h"
#include "server/chat/json_text.h"
#include "server/chat/marker_search.h"
#include "server/chat/tool_format.h"

namespace tessera {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kMarkers[] = {kBegin, kFunction};
constexpr std::string_view kSigns[] = {kParameter};
constexpr std::string_view kSpecials[] = {kBegin, kEnd};

// Ends of a value. Other tags end it at the beginning of a line, where the closing one is missing.
constexpr std::string_view kValueEnds[] = {"\n</parameter>", "</parameter>",
                                           "\n<parameter=", "\n</function>"};

constexpr std::size_t kLongestName = 256;  // of a function or a parameter

class QwenXmlParser final : public JsonToolParser {
 public:
  explicit QwenXmlParser(const ParserSetup& setup)
      : place_(setup.forced ? Place::call : Place::text), types_(setup.types) {}

 private:
  enum class Place : uint8_t { text, call, json, name, inside, key, value, end };

  bool step(bool end, AnswerPart& out) override {
    switch (place_) {
      case Place::text:
        return read_text(end, out);
      case Place::call:
        return read_begin(end, out);
      case Place::json:
        return read_call(kBegin, place_, Place::end, Place::text, out);
      case Place::name:
        return read_name(end, out);
      case Place::inside:
        return read_inside(end, out);
      case Place::key:
        return read_key();
      case Place::value:
        return read_value(end, out);
      case Place::end:
        break;
    }
    return read_end(end);
  }

  void finish(AnswerPart& out) override {
    JsonToolParser::finish(out);
    out.content += std::exchange(read_, {});
  }

  // Drops text that becomes content if no name follows.
  void read(std::string_view text) {
    read_ += text;
    held_.erase(0, text.size());
  }

  bool to_text(AnswerPart& out) {
    out.content += std::exchange(read_, {});
    place_ = Place::text;
    return true;
  }

  bool read_text(bool end, AnswerPart& out) {
    const std::string_view marker = content_until(kMarkers, end, out);
    if (marker.empty()) {
      return false;
    }
    read_ = marker;
    place_ = marker == kBegin ? Place::call : Place::name;
    return true;
  }

  // After <tool_call>.
  bool read_begin(bool end, AnswerPart& out) {
    skip_blanks();
    if (held_.starts_with('{')) {
      read_.clear();
      place_ = Place::json;
      return true;
    }
    switch (next_is(kFunction, end)) {
      case Next::yes:
        read(kFunction);
        place_ = Place::name;
        return true;
      case Next::unknown:
        return false;
      case Next::no:
        break;
    }
    return held_.empty() ? false : to_text(out);
  }

  bool read_name(bool end, AnswerPart& out) {
    const std::size_t close = held_.find('>');
    if (close == std::string::npos && held_.size() <= kLongestName && !end) {
      return false;
    }
    const std::string name = trimmed(held_.substr(0, close));
    const bool possible = close != std::string::npos && !name.empty() &&
                          name.size() <= kLongestName &&
                          name.find_first_of("<\n") == std::string::npos;
    const bool bare = read_ == kFunction;  // content may have such a tag: code, for one
    if (!possible || (bare && types_ != nullptr && !types_->has(name))) {
      return to_text(out);
    }
    held_.erase(0, close + 1);
    read_.clear();
    function_ = name;
    any_argument_ = false;
    begin_call(name, out);
    place_ = Place::inside;
    return true;
  }

  // Between parameters. Text that is no tag says nothing.
  bool read_inside(bool end, AnswerPart& out) {
    constexpr std::string_view kTags[] = {kParameter, kFunctionEnd, kEnd};
    const MarkerPlace next = find_marker(held_, kTags, end);
    held_.erase(0, next.begin + (next.marker == kEnd ? 0 : next.marker.size()));
    if (next.marker == kParameter) {
      place_ = Place::key;
    } else if (!next.marker.empty()) {
      add_arguments(any_argument_ ? "}" : "{}", out);
      end_call();
      place_ = Place::end;
    }
    return !next.marker.empty();
  }

  bool read_key() {
    const std::size_t close = held_.find('>');
    if (close == std::string::npos && held_.size() <= kLongestName) {
      return false;
    }
    key_ = trimmed(held_.substr(0, std::min(close, kLongestName)));
    held_.erase(0, close == std::string::npos ? kLongestName : close + 1);
    value_types_ = types_ == nullptr ? JsonTypes() : types_->of(function_, key_);
    value_.clear();
    value_begun_ = false;
    place_ = Place::value;
    return true;
  }

  bool read_value(bool end, AnswerPart& out) {
    if (!value_begun_) {
      held_.erase(0, held_.front() == '\n' ? 1 : 0);
      value_begun_ = true;
      begin_value(out);
    }
    const MarkerPlace next = find_marker(held_, kValueEnds, end);
    const std::string_view text = std::string_view(held_).substr(0, next.begin);
    if (value_types_.only_string()) {
      const std::string quoted = json_string(text);
      add_arguments(std::string_view(quoted).substr(1, quoted.size() - 2), out);
    } else {
      value_ += text;
    }
    const bool closed = next.marker.ends_with("</parameter>");
    // The line break alone is read of another tag.
    held_.erase(0, next.begin + (next.marker.empty() ? 0 : closed ? next.marker.size() : 1));
    if (next.marker.empty()) {
      return false;
    }
    add_arguments(value_types_.only_string() ? "\"" : typed_argument(value_, value_types_), out);
    place_ = Place::inside;
    return true;
  }

  void begin_value(AnswerPart& out) {
    add_arguments((any_argument_ ? ", " : "{") + json_string(key_) + ": " +
                      (value_types_.only_string() ? "\"" : ""),
                  out);
    any_argument_ = true;
  }

  bool read_end(bool end) {
    skip_blanks();
    const Next next = next_is(kEnd, end);
    if (next == Next::unknown) {
      return false;
    }
    held_.erase(0, next == Next::yes ? kEnd.size() : 0);
    place_ = Place::text;
    return true;
  }

  static std::string trimmed(const std::string& text) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n\"'"), text.size());
    return text.substr(begin, text.find_last_not_of(" \t\r\n\"'") + 1 - begin);
  }

  Place place_;
  const std::shared_ptr<const ArgumentTypes> types_;
  std::string read_;  // consumed before the call is named
  std::string function_;
  std::string key_;
  JsonTypes value_types_;
  std::string value_;  // of another type than a text
  bool value_begun_ = false;
  bool any_argument_ = false;
};

std::unique_ptr<ToolParser> make_parser(const ParserSetup& setup) {
  return std::make_unique<QwenXmlParser>(setup);
}

}  // namespace

const ToolFormat kQwenXmlFormat{.name = "qwen3_coder",
                                .signs = kSigns,
                                .make_parser = make_parser,
                                .layout = {.prompt = "<tool_call>\n",
                                           .begin = "",
                                           .before_name = kFunction,
                                           .before_arguments = ">\n",
                                           .after = "\n</function>\n</tool_call>",
                                           .separator = "\n<tool_call>\n",
                                           .end = "",
                                           .style = "qwen_xml"},
                                .trigger = kBegin,
                                .specials = kSpecials,
                                .reads_types = true};

}  // namespace tessera
