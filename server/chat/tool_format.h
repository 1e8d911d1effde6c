#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/chat/tool_parser.h"

namespace tessera {

// How calls are written where a grammar forces them.
struct CallLayout {
  std::string_view prompt;            // ends the prompt; may have special tokens
  std::string_view begin;             // before the first call
  std::string_view before_name;       // of each call
  std::string_view before_arguments;  // a JSON object
  std::string_view after;
  std::string_view separator;       // between two calls
  std::string_view end;             // after the last call
  std::string_view style = "json";  // of arguments, as xgrammar calls it
};

class ArgumentTypes;

// A parser's knowledge of its request.
struct ParserSetup {
  bool forced = false;                                   // the text follows the layout's prompt
  std::shared_ptr<const ArgumentTypes> types = nullptr;  // of formats that read them; null: any
};

// A notation of tool calls that models are trained for.
struct ToolFormat {
  std::string_view name;  // as vLLM calls its parser
  // A template with one of these texts uses the notation.
  std::span<const std::string_view> signs;
  std::unique_ptr<ToolParser> (*make_parser)(const ParserSetup& setup);
  CallLayout layout;
  // Text that begins each call in any tokenizer's plain tokens; empty: there is none.
  std::string_view trigger;
  // Special tokens of the notation. Others are not printed.
  std::span<const std::string_view> specials;
  bool reads_types = false;  // the text of a call does not tell the types of its arguments
};

extern const ToolFormat kHermesFormat;
extern const ToolFormat kMistralFormat;
extern const ToolFormat kLlamaJsonFormat;
extern const ToolFormat kPythonicFormat;
extern const ToolFormat kQwenXmlFormat;
extern const ToolFormat kGraniteFormat;
extern const ToolFormat kPhi4Format;
extern const ToolFormat kDeepseekFormat;

// Returns: the format of this name, or null.
const ToolFormat* find_tool_format(std::string_view name);

// Returns: the format whose signs the template has; that of Hermes, which plain_tools.h writes, if
// the template has none.
const ToolFormat& tool_format_of(std::string_view template_source);

// Returns: all formats.
std::span<const ToolFormat* const> tool_formats();

}  // namespace tessera
