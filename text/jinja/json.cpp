#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style), indent_(style.indent) {}

  absl::Status write(const Value& value) {
    if (const Text* text = value.text()) {
      string(*text);
    } else if (const List* list = value.list()) {
      return write_list(*list);
    } else if (const Dict* dict = value.dict()) {
      return write_dict(*dict);
    } else if (value.is_none()) {
      out_.append("null");
    } else if (value.is_bool()) {
      out_.append(value.truthy() ? "true" : "false");
    } else if (value.is_number()) {
      if (!std::isfinite(*value.number())) return absl::InvalidArgumentError("tojson: not finite");
      out_.append(printed(value));
    } else {
      return absl::InvalidArgumentError(std::string("tojson does not work on ") +
                                        value.type_name());
    }
    return absl::OkStatus();
  }

  Text take() { return std::move(out_); }

 private:
  void string(const Text& text) {
    out_.append("\"");
    size_t plain = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool ascii = static_cast<unsigned char>(text.bytes()[i]) < 0x80;
      if (!ascii && !style_.ensure_ascii) continue;
      size_t size = 1;
      const std::string escape =
          ascii ? escaped(text.bytes()[i]) : escaped_character(text.bytes().substr(i, 4), size);
      if (escape.empty()) continue;
      out_.append(text.slice(plain, i));
      out_.append(escape, text.from_message_at(i));
      plain = i + size;
      i += size - 1;
    }
    out_.append(text.slice(plain, text.size()));
    out_.append("\"");
  }

  static std::string escaped(char c) {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (static_cast<unsigned char>(c) >= 0x20) return {};
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string escape = "\\u00";
    escape += c < 0x10 ? '0' : '1';
    escape += kDigits[static_cast<size_t>(c) & 0xFU];
    return escape;
  }

  // Returns: the character at the beginning of `text` as \\u escapes of UTF-16; sets its `size`.
  static std::string escaped_character(std::string_view text, size_t& size) {
    const Utf8Step step = next_utf8(text);
    size = std::max<size_t>(step.size, 1);
    const uint32_t point =
        step.kind == Utf8Step::Kind::valid ? static_cast<uint32_t>(step.character) : 0xFFFD;
    if (point < 0x10000) return escaped_unit(point);
    return escaped_unit(0xD800 + ((point - 0x10000) >> 10U)) +
           escaped_unit(0xDC00 + ((point - 0x10000) & 0x3FFU));
  }

  static std::string escaped_unit(uint32_t unit) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string escape = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
      escape += kDigits[(unit >> static_cast<unsigned>(shift)) & 0xFU];
    }
    return escape;
  }

  // Called before each element and after the last one; `first` omits the comma.
  void separate(bool first) {
    if (!first) {
      const std::string& given = style_.item_separator;
      out_.append(!given.empty() ? std::string_view(given) : indent_ < 0 ? ", " : ",");
    }
    new_line();
  }

  void new_line() {
    if (indent_ < 0) return;
    out_.append("\n");
    out_.append(std::string(static_cast<size_t>(level_ * indent_), ' '));
  }

  absl::Status write_list(const List& list) {
    out_.append("[");
    ++level_;
    for (size_t i = 0; i < list.items.size(); ++i) {
      separate(i == 0);
      TESSERA_RETURN_IF_ERROR(write(list.items[i]));
    }
    --level_;
    if (!list.items.empty()) new_line();
    out_.append("]");
    return absl::OkStatus();
  }

  absl::Status write_dict(const Dict& dict) {
    out_.append("{");
    ++level_;
    std::vector<const std::pair<Text, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        if (dict.integer_keys) {
          return *dict.key(a->first).integer() < *dict.key(b->first).integer();
        }
        return a->first.bytes() < b->first.bytes();  // UTF-8 has the order of the characters
      });
    }
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i == 0);
      string(items[i]->first);
      out_.append(style_.key_separator.empty() ? ": " : std::string_view(style_.key_separator));
      TESSERA_RETURN_IF_ERROR(write(items[i]->second));
    }
    --level_;
    if (!dict.items.empty()) new_line();
    out_.append("}");
    return absl::OkStatus();
  }

  Text out_;
  const JsonStyle& style_;
  const int indent_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<Text> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  TESSERA_RETURN_IF_ERROR(writer.write(value));
  return writer.take();
}

}  // namespace tessera::jinja
