#include "server/chat/tool_format.h"

#include <algorithm>

namespace tessera {
namespace {

// The only list of the formats. The first one whose sign a template has is taken.
constexpr const ToolFormat* kToolFormats[] = {&kMistralFormat,  &kDeepseekFormat, &kQwenXmlFormat,
                                              &kHermesFormat,   &kGraniteFormat,  &kPhi4Format,
                                              &kPythonicFormat, &kLlamaJsonFormat};

}  // namespace

const ToolFormat* find_tool_format(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kToolFormats), std::end(kToolFormats),
                   [&](const ToolFormat* format) { return format->name == name; });
  return found == std::end(kToolFormats) ? nullptr : *found;
}

const ToolFormat& tool_format_of(std::string_view template_source) {
  for (const ToolFormat* const format : kToolFormats) {
    for (const std::string_view sign : format->signs) {
      if (template_source.find(sign) != std::string_view::npos) {
        return *format;
      }
    }
  }
  return kHermesFormat;
}

std::span<const ToolFormat* const> tool_formats() {
  return kToolFormats;
}

}  // namespace tessera
