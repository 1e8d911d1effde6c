#include "server/openai/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/base/unique_id.h"
#include "server/dialect/cache_control.h"
#include "server/dialect/conversation_fields.h"
#include "server/dialect/grammar_fields.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/prompt_fields.h"
#include "server/dialect/request_options.h"
#include "server/dialect/retention.h"
#include "server/dialect/tool_fields.h"
#include "server/json/body_fields.h"
#include "server/json/ordered_members.h"
#include "server/openai/legacy_functions.h"
#include "server/openai/unsupported.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

using nlohmann::json;

void read_stop(BodyFields& fields, GenerateRequest& out) {
  fields.texts("stop", out.stop);
  if (const std::optional<std::string> error = stop_error(out.stop, kStopLimits)) {
    fields.refuse("stop", *error);
  }
}

void read_stream(BodyFields& fields, CompletionRequest& out) {
  fields.boolean("stream", out.stream);
  const json* options = fields.find("stream_options");
  // Some clients send include_usage: false always, which asks for nothing.
  if (options == nullptr || (!out.stream && *options == json{{"include_usage", false}})) {
    return;
  }
  if (!out.stream) {
    fields.refuse("stream_options", "is only allowed with stream: true");
  } else if (!options->is_object()) {
    fields.refuse("stream_options", fmt::format("must be an object, not {}", excerpt(*options)));
  } else {
    BodyFields inner(*options, "stream_options.");
    inner.boolean("include_usage", out.include_usage);
    inner.boolean("continuous_usage_stats", out.continuous_usage);
    if (const json* padding = inner.find("include_obfuscation"); padding && *padding != false) {
      inner.refuse("include_obfuscation", "is not supported by this server",
                   "unsupported_parameter");
    }
    inner.refuse_unknown();
    fields.adopt(inner.status());
  }
}

// The client's name for the request, returned as part of the answer's id.
void read_request_id(BodyFields& fields, std::string& out) {
  fields.text("request_id", out);
  const bool plain =
      std::all_of(out.begin(), out.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (out.size() > kMaxRequestId || !plain) {
    fields.refuse("request_id",
                  fmt::format("must have at most {} visible ASCII characters", kMaxRequestId));
  }
}

// vLLM's number of tokens that are kept of a prompt; -1: as many as fit.
void read_truncation(BodyFields& fields, GenerateRequest& out) {
  const json* value = fields.find("truncate_prompt_tokens");
  if (value != nullptr && *value == kTruncateToFit) {
    out.truncate_prompt = kTruncateToFit;
  } else if (value != nullptr) {
    fields.integer({"truncate_prompt_tokens", kTruncatedPrompt}, out.truncate_prompt.emplace());
  }
}

// Fields of both endpoints.
void read_common(BodyFields& fields, CompletionRequest& out) {
  fields.text("model", out.model);
  read_options(fields, out.each);
  read_stop(fields, out.each);
  read_stream(fields, out);
  fields.integer({"n", kSampleCount}, out.n);
  read_kv_cache(fields, out.each.kv);
  read_retention(fields, out.each);
  fields.boolean("return_tokens_as_token_ids", out.token_ids_as_text);
  fields.boolean("return_token_ids", out.token_ids);
  out.each.prompt_ids = out.token_ids;
  fields.boolean("include_stop_str_in_output", out.each.include_stop);
  read_truncation(fields, out.each);
  bool skip_special = true;
  fields.boolean("skip_special_tokens", skip_special);
  out.each.keep_special = !skip_special;
  read_request_id(fields, out.request_id);
  out.prompt_logprobs = out.each.sampling.prompt_logprobs;
  if (out.prompt_logprobs && out.stream) {
    fields.refuse("prompt_logprobs", "is not available with stream: true");
  }
}

// Parses the members again whose order matters.
absl::StatusOr<nlohmann::ordered_json> read_ordered(BodyFields& fields, std::string_view body) {
  std::vector<std::string_view> names(std::begin(kGrammarMembers), std::end(kGrammarMembers));
  names.insert(names.end(), std::begin(kConversationMembers), std::end(kConversationMembers));
  if (std::any_of(names.begin(), names.end(),
                  [&](std::string_view name) { return fields.find(name) != nullptr; })) {
    return ordered_members(body, names);
  }
  return nlohmann::ordered_json::object();
}

absl::Status read_grammar(BodyFields& fields, const nlohmann::ordered_json& members,
                          CompletionRequest& out) {
  out.each.grammar = read_grammar(fields, members);
  if (out.each.grammar && out.each.ignore_eos) {
    fields.refuse("ignore_eos", "cannot be combined with a grammar, which ends the text");
  }
  return absl::OkStatus();
}

// Called after all fields were read: sets the log probabilities that the engine reports, and
// refuses unsupported and unknown fields.
absl::Status finish_fields(BodyFields& fields, CompletionRequest& out) {
  SamplingParams& sampling = out.each.sampling;
  sampling.top_logprobs = out.logprobs;
  if (out.echo_logprobs) {
    sampling.prompt_logprobs = std::max(*out.logprobs, out.prompt_logprobs.value_or(0));
  }
  if (out.best_of > out.n && !out.logprobs) {
    sampling.top_logprobs = 0;  // needed to choose the most likely sequences
  }
  refuse_unsupported(fields, out.chat);
  fields.refuse_unknown();
  out.warnings = fields.warnings();
  return fields.status();
}

// Reads the options of a text's conversion to tokens, by vLLM's and by llama-server's names. Both
// parse special tokens.
void read_special(BodyFields& fields, PromptOptions& out) {
  out.parse_special = true;
  fields.boolean("add_special_tokens", out.add_bos);
  fields.boolean("add_special", out.add_bos);
  fields.boolean("parse_special", out.parse_special);
}

// Maximum number of tokens to generate. -1, as in llama-server: as many as the context has room
// for.
void read_limit(BodyFields& fields, const Option& option, std::optional<int32_t>& out) {
  const json* value = fields.find(option.name);
  if (value != nullptr && *value == -1) {
    out.reset();
  } else if (value != nullptr) {
    fields.integer(option, out.emplace());
  }
}

void read_best_of(BodyFields& fields, CompletionRequest& out) {
  out.best_of = out.n;
  fields.integer({"best_of", kSampleCount}, out.best_of);
  if (out.best_of < out.n) {
    fields.refuse("best_of", fmt::format("is {}, less than n, which is {}", out.best_of, out.n));
  } else if (out.stream && out.best_of > out.n) {
    fields.refuse("best_of", "must be n with stream: true");
  }
}

// Text after the answer, which then fills in the middle.
void read_suffix(BodyFields& fields, CompletionRequest& out) {
  std::string suffix;
  fields.text("suffix", suffix);
  if (suffix.empty()) {
    return;
  }
  if (out.each.echo) {
    fields.refuse("echo", "cannot be combined with suffix");
  } else if (out.each.truncate_prompt) {
    fields.refuse("truncate_prompt_tokens", "cannot be combined with suffix");
  }
  out.each.prompt_options.infill = Infill{.suffix = std::move(suffix)};
}

// Errors: InvalidArgument for prompts of token ids with a suffix.
absl::Status check_suffix(const CompletionRequest& request) {
  const bool texts = std::ranges::all_of(request.prompts, [](const Prompt& prompt) {
    return std::holds_alternative<std::string>(prompt);
  });
  return texts || !request.each.prompt_options.infill
             ? absl::OkStatus()
             : invalid_field("suffix", "suffix needs a prompt that is a text, not token ids");
}

// Reads a conversation, and how its prompt ends. A continued message has no new turn after it.
absl::StatusOr<Conversation> read_chat(BodyFields& fields, const nlohmann::ordered_json& ordered,
                                       std::string_view body, PromptOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Conversation conversation, read_conversation(fields, ordered, body));
  options.marks = read_chat_marks(fields);
  options.add_generation_prompt = !conversation.continue_final;
  fields.boolean("add_generation_prompt", options.add_generation_prompt);
  if (conversation.continue_final && options.add_generation_prompt) {
    return invalid_field("continue_final_message",
                         "continue_final_message cannot be combined with add_generation_prompt");
  }
  return conversation;
}

}  // namespace

absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  CompletionRequest request;
  BodyFields fields(object);
  read_common(fields, request);
  request.each.max_tokens = 16;  // as OpenAI
  read_limit(fields, {"max_tokens", kTokenCount}, request.each.max_tokens);
  read_special(fields, request.each.prompt_options);
  fields.boolean("echo", request.each.echo);
  read_suffix(fields, request);
  read_best_of(fields, request);
  if (fields.find("logprobs") != nullptr) {
    fields.integer({"logprobs", kTopLogprobs}, request.logprobs.emplace());
  }
  request.echo_logprobs = request.each.echo && request.logprobs.has_value();
  // Clients that score a prompt request one more token and rely on it. So it is returned even if it
  // is an end of sequence.
  if (request.echo_logprobs && request.each.max_tokens == 1) {
    request.each.ignore_eos = true;
  }
  fields.find("prompt");
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered, read_ordered(fields, body));
  TESSERA_RETURN_IF_ERROR(read_grammar(fields, ordered, request));
  TESSERA_RETURN_IF_ERROR(finish_fields(fields, request));
  TESSERA_RETURN_IF_ERROR(read_prompts(fields, "prompt", request.prompts));
  TESSERA_RETURN_IF_ERROR(check_suffix(request));
  return request;
}

namespace {

// Names the fields of OpenAI's older form of tools, which with_tools() replaces.
void name_legacy_functions(BodyFields& fields) {
  fields.find("functions");
  fields.find("function_call");
}

absl::StatusOr<CompletionRequest> parse_chat(const json& object, std::string_view body) {
  CompletionRequest request;
  request.chat = true;
  BodyFields fields(object);
  name_legacy_functions(fields);
  read_common(fields, request);
  constexpr OptionRange kCompletion{1};  // prefill only is for completions
  read_limit(fields, {"max_tokens", kCompletion}, request.each.max_tokens);
  read_limit(fields, {"max_completion_tokens", kCompletion}, request.each.max_tokens);  // wins
  if (const json* add = fields.find("add_special_tokens"); add != nullptr && *add != false) {
    fields.refuse("add_special_tokens", "must be false for chats: their template writes them");
  }
  bool logprobs = false;
  int32_t top_logprobs = 0;
  fields.boolean("logprobs", logprobs);
  fields.integer({"top_logprobs", kTopLogprobs}, top_logprobs);
  if (logprobs) {
    request.logprobs = top_logprobs;
  } else if (top_logprobs > 0) {
    fields.refuse("top_logprobs", "is only allowed with logprobs: true");
  }
  fields.boolean("include_reasoning", request.reasoning);
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered, read_ordered(fields, body));
  TESSERA_RETURN_IF_ERROR(read_grammar(fields, ordered, request));
  std::vector<std::string> tools;
  request.tools = read_tools(fields, ordered, tools);
  fields.find("messages");
  TESSERA_ASSIGN_OR_RETURN(Conversation conversation,
                           read_chat(fields, ordered, body, request.each.prompt_options));
  conversation.tools = std::move(tools);
  TESSERA_RETURN_IF_ERROR(finish_fields(fields, request));
  request.prompts.emplace_back(std::move(conversation));
  return request;
}

absl::StatusOr<TokenizeRequest> parse_tokenize(const json& object, std::string_view body) {
  TokenizeRequest request;
  BodyFields fields(object);
  fields.text("model", request.model);
  fields.boolean("return_token_strs", request.token_texts);
  fields.boolean("with_pieces", request.pieces);
  if (request.pieces && request.token_texts) {
    fields.refuse("with_pieces", "cannot be combined with return_token_strs");
  }
  const bool chat = fields.find("messages") != nullptr;
  if (chat) {
    name_legacy_functions(fields);
  }
  const bool llama = !chat && fields.find("content") != nullptr;
  const char* const name = llama ? "content" : "prompt";
  std::string text;
  request.options.add_bos = !llama;  // both servers' defaults
  read_special(fields, request.options);
  fields.text(name, text);
  request.prompt = std::move(text);
  if (chat) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered, read_ordered(fields, body));
    std::vector<std::string> tools;
    request.tools = read_tools(fields, ordered, tools);
    TESSERA_ASSIGN_OR_RETURN(Conversation conversation,
                             read_chat(fields, ordered, body, request.options));
    request.options.marks.clear();  // nothing is kept
    conversation.tools = std::move(tools);
    request.prompt = std::move(conversation);
  } else if (fields.find(name) == nullptr) {
    fields.refuse(name, "is missing (or messages, for a chat)");
  }
  GenerateRequest none;  // nothing is generated
  read_retention(fields, none);
  refuse_unsupported(fields, chat);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.warnings = fields.warnings();
  return request;
}

// Parses a chat's body, in OpenAI's older form of tools too.
template <class Parse>
auto parse_either_form(std::string_view body, const json& object, Parse parse)
    -> decltype(parse(object, body)) {
  if (!has_legacy_functions(object)) {
    return parse(object, body);
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string newer, with_tools(body));
  TESSERA_ASSIGN_OR_RETURN(const json replaced, parse_body(newer));
  auto request = parse(replaced, newer);
  return request.ok() ? std::move(request) : in_legacy_terms(request.status());
}

}  // namespace

absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  TESSERA_ASSIGN_OR_RETURN(CompletionRequest request, parse_either_form(body, object, parse_chat));
  const auto functions = object.find("functions");
  request.legacy_calls = functions != object.end() && !functions->is_null();
  return request;
}

absl::StatusOr<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  return parse_either_form(body, object, parse_tokenize);
}

absl::StatusOr<DetokenizeRequest> parse_detokenize_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  DetokenizeRequest request;
  BodyFields fields(object);
  fields.text("model", request.model);
  fields.integers("tokens", request.tokens);
  if (fields.find("tokens") == nullptr) {
    fields.refuse("tokens", "is missing");
  }
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace tessera
