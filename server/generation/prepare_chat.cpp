#include "server/generation/prepare_chat.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/base/error.h"
#include "server/chat/argument_types.h"
#include "server/chat/json_text.h"
#include "server/chat/tool_grammar.h"
#include "server/request/generate_request.h"
#include "server/telemetry/access_log.h"

namespace tessera {
namespace {

constexpr std::size_t kShownBytes =
    256;  // of a message in the log, which quotes the client's names

// Sets the grammar of the answer, if the tools ask for one.
absl::Status add_grammar(const ToolFormat& format, const ToolUse& use, GenerateRequest& request,
                         std::vector<std::string>& left_out) {
  const bool forced = use.choice == ToolUse::Choice::required;
  if (forced && request.grammar && request.grammar->text_alone) {
    request.grammar.reset();
  }
  if (request.grammar && forced) {
    return invalid_field("tool_choice", fmt::format("tool_choice cannot require a call together "
                                                    "with {}",
                                                    request.grammar->field));
  }
  absl::StatusOr<std::optional<GrammarSpec>> grammar =
      request.grammar ? calls_or(use, format, *request.grammar, left_out)
                      : tool_grammar(use, format, left_out);
  TESSERA_RETURN_IF_ERROR(grammar.status());
  if (*grammar && request.ignore_eos) {
    return invalid_field("ignore_eos",
                         "ignore_eos cannot be combined with a grammar, which ends the text");
  }
  request.grammar = *std::move(grammar);
  if (forced) {
    if (!request.prompt_options.add_generation_prompt) {
      return invalid_field("tool_choice",
                           "tool_choice needs add_generation_prompt to require a call");
    }
    request.prompt_options.answer_begin = format.layout.prompt;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AnswerNotation> prepare_chat(const ChatFormat& format, const Tokenizer& tokenizer,
                                            const ToolUse& use, GenerateRequest& request) {
  AnswerNotation notation{.thoughts = format.thoughts};
  const bool bound = request.grammar.has_value();
  if (!use.tools.empty() && use.choice != ToolUse::Choice::none) {
    if (format.tools == nullptr) {
      return invalid_field("tools", "this server reads no tool calls (--tool-calls none)",
                           "unsupported_parameter");
    }
    notation.tools = format.tools;
    if (format.tools->reads_types) {
      notation.types = std::make_shared<const ArgumentTypes>(use.tools);
    }
    notation.forced = use.choice == ToolUse::Choice::required;
    notation.one_call = !use.parallel;
    for (const Tool& tool : use.tools) {
      if (tool.custom) {
        notation.custom_tools.push_back(tool.name);
      }
    }
    TESSERA_RETURN_IF_ERROR(add_grammar(*format.tools, use, request, notation.left_out));
    for (const std::string_view special : format.tools->specials) {
      if (const std::optional<int32_t> id = tokenizer.special_id(special)) {
        request.printed_special.push_back(*id);
      }
    }
  }
  for (const std::string& message : notation.left_out) {
    if (request.record != nullptr) request.record->add_warning(message);
    spdlog::warn("an answer is bound less than its request says: {}",
                 json_string(std::string_view(message).substr(0, kShownBytes)));
  }
  if (bound || notation.forced) {  // the grammar is that of the answer: there are no thoughts
    notation.thoughts = false;
    request.prompt_options.close_thought = true;
  }
  return notation;
}

}  // namespace tessera
