#include "server/openai/unsupported.h"

#include <span>
#include <string_view>

namespace tessera {

namespace {

using nlohmann::json;

using Harmless = bool (*)(const json&);

bool never(const json&) {
  return false;
}
bool is_switch(const json& v) {
  return v.is_boolean();
}
bool is_name(const json& v) {
  return v.is_string();
}
bool is_record(const json& v) {
  return v.is_object();
}
bool is_verbosity(const json& v) {
  return v == "low" || v == "medium" || v == "high";
}
bool is_false(const json& v) {
  return v == false;
}
bool is_one(const json& v) {
  return v == 1;
}
bool is_empty(const json& v) {
  return v.empty() || v == "";
}
bool is_none(const json& v) {
  return v == "none" || v == "auto";
}
bool is_default_backend(const json& v) {
  return v == "auto" || v == "xgrammar";
}
bool is_text_only(const json& v) {
  return v == json::array({"text"});
}

struct Field {
  std::string_view name;
  Harmless harmless;  // true for a value that asks for nothing
};

// Fields of OpenAI, vLLM and llama-server that no other code here reads. OpenAI calls some of them
// hints, or means them for its own records: these do not change an answer.
constexpr Field kFields[] = {
    {"audio", never},
    {"chat_template", never},
    {"documents", is_empty},
    {"guided_decoding_backend", is_default_backend},
    {"guided_whitespace_pattern", never},
    {"kv_transfer_params", is_empty},
    {"length_penalty", is_one},
    {"logits_processors", is_empty},
    {"media_io_kwargs", is_empty},
    {"metadata", is_record},
    {"mm_processor_kwargs", is_empty},
    {"modalities", is_text_only},
    {"moderation", never},
    {"prediction", is_record},
    {"prompt_embeds", is_empty},
    {"safety_identifier", is_name},
    {"service_tier", is_name},
    {"spaces_between_special_tokens", is_switch},  // only for tokenizers not supported here
    {"store", is_switch},
    {"structural_tag", is_empty},
    {"thinking_token_budget", never},
    {"use_beam_search", is_false},
    {"user", is_name},
    {"verbosity", is_verbosity},
    {"vllm_xargs", is_empty},
};

// Fields of completions that chats do not have, and the reverse.
constexpr Field kNotOfChats[] = {{"best_of", is_one}, {"echo", is_false}, {"suffix", is_empty}};
constexpr Field kOnlyOfChats[] = {{"chat_template_kwargs", is_empty},
                                  {"continue_final_message", is_false},
                                  {"enable_thinking", never},
                                  {"function_call", is_none},
                                  {"functions", is_empty},
                                  {"include_reasoning", is_switch},
                                  {"parallel_tool_calls", is_switch},
                                  {"reasoning_effort", never},
                                  {"thinking", never},
                                  {"tool_choice", is_none},
                                  {"tools", is_empty}};

void refuse(BodyFields& fields, const Field& field) {
  const json* value = fields.find_unsupported(field.name);
  if (value != nullptr && !field.harmless(*value)) {
    fields.refuse(field.name, "is not supported by this server", "unsupported_parameter");
  }
}

}  // namespace

void refuse_unsupported(BodyFields& fields, bool chat) {
  if (chat && fields.find_unsupported("web_search_options") != nullptr) {
    fields.warn("web_search_options", "is left out: this server searches nothing");
  }
  for (const Field& field : kFields) {
    refuse(fields, field);
  }
  const std::span<const Field> others =
      chat ? std::span<const Field>(kNotOfChats) : std::span<const Field>(kOnlyOfChats);
  for (const Field& field : others) {
    refuse(fields, field);
  }
}

}  // namespace tessera
