#include "server/chat/tool_format.h"

#include <algorithm>

namespace tessera {
namespace {

// The only list of the formats. The first one whose sign a template has is taken.
constexpr const ToolFormat* kFormats[] = {&kMistralFormat, &kHermesFormat, &kPythonicFormat,
                                          &kLlamaJsonFormat};

}  // namespace

const ToolFormat* find_tool_format(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kFormats), std::end(kFormats),
                   [&](const ToolFormat* format) { return format->name == name; });
  return found == std::end(kFormats) ? nullptr : *found;
}

const ToolFormat& tool_format_of(std::string_view template_source) {
  for (const ToolFormat* const format : kFormats) {
    for (const std::string_view sign : format->signs) {
      if (template_source.find(sign) != std::string_view::npos) {
        return *format;
      }
    }
  }
  return kHermesFormat;
}

std::span<const ToolFormat* const> tool_formats() {
  return kFormats;
}

}  // namespace tessera
