#include <cmath>

#include "models/status_macros.h"
#include "models/text/jinja/builtins.h"

namespace tessera::jinja {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}

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
      const std::string escape = escaped(text.bytes()[i]);
      if (escape.empty()) continue;
      out_.append(text.slice(plain, i));
      const bool from_message = text.slice(i, i + 1).any_from_message();
      out_.append(escape, from_message);
      plain = i + 1;
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

  // Called before each element and after the last one; `first` omits the comma.
  void separate(bool first) {
    if (!first) out_.append(indent_ < 0 ? ", " : ",");
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
    for (size_t i = 0; i < dict.items.size(); ++i) {
      separate(i == 0);
      string(dict.items[i].first);
      out_.append(": ");
      TESSERA_RETURN_IF_ERROR(write(dict.items[i].second));
    }
    --level_;
    if (!dict.items.empty()) new_line();
    out_.append("}");
    return absl::OkStatus();
  }

  Text out_;
  const int indent_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<Text> to_json(const Value& value, int indent) {
  JsonWriter writer(indent);
  TESSERA_RETURN_IF_ERROR(writer.write(value));
  return writer.take();
}

}  // namespace tessera::jinja
