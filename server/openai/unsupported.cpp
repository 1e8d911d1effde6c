#include "server/openai/unsupported.h"

#include <string_view>

namespace tessera {

namespace {

using nlohmann::json;

using Harmless = bool (*)(const json&);

bool never(const json&) {
  return false;
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
bool is_text(const json& v) {
  return v == json{{"type", "text"}};
}
bool is_text_only(const json& v) {
  return v == json::array({"text"});
}

struct Field {
  std::string_view name;
  Harmless harmless;  // a value that asks for nothing
};

constexpr Field kFields[] = {
    {"allowed_token_ids", is_empty},
    {"audio", never},
    {"bad_words", is_empty},
    {"best_of", is_one},
    {"chat_template", never},
    {"chat_template_kwargs", is_empty},
    {"continue_final_message", is_false},
    {"documents", is_empty},
    {"echo", is_false},
    {"function_call", is_none},
    {"functions", is_empty},
    {"grammar", is_empty},
    {"guided_choice", is_empty},
    {"guided_grammar", is_empty},
    {"guided_json", is_empty},
    {"guided_regex", is_empty},
    {"include_stop_str_in_output", is_false},
    {"json_schema", is_empty},
    {"length_penalty", is_one},
    {"logits_processors", is_empty},
    {"modalities", is_text_only},
    {"prediction", never},
    {"prompt_embeds", is_empty},
    {"prompt_logprobs", never},
    {"response_format", is_text},
    {"return_token_ids", is_false},
    {"return_tokens_as_token_ids", is_false},
    {"structural_tag", is_empty},
    {"structured_outputs", is_empty},
    {"suffix", is_empty},
    {"thinking_token_budget", never},
    {"tool_choice", is_none},
    {"tools", is_empty},
    {"truncate_prompt_tokens", never},
    {"typical_p", is_one},
    {"use_beam_search", is_false},
    {"web_search_options", never},
};

}  // namespace

void refuse_unsupported(BodyFields& fields) {
  for (const Field& field : kFields) {
    const json* value = fields.find(field.name);
    if (value != nullptr && !field.harmless(*value)) {
      fields.refuse(field.name, "is not supported by this server", "unsupported_parameter");
    }
  }
}

}  // namespace tessera
