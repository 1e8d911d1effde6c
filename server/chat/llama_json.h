#pragma once

#include <memory>

#include "server/chat/tool_format.h"

namespace tessera {

inline constexpr CallLayout kLlamaJsonLayout{.prompt = "",
                                             .begin = "",
                                             .before_name = R"({"name": ")",
                                             .before_arguments = R"(", "parameters": )",
                                             .after = "}",
                                             .separator = "; ",
                                             .end = ""};

std::unique_ptr<ToolParser> make_llama_json_parser(const ParserSetup& setup);

}  // namespace tessera
