#include "server/openai/infill_request.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/request_options.h"
#include "server/json/body_fields.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxFiles = 256;

// Reads input_extra: [{"filename", "text"}].
void read_files(BodyFields& fields, Infill& out) {
  const json* given = fields.find("input_extra");
  if (given == nullptr) {
    return;
  }
  if (!given->is_array() || given->size() > kMaxFiles) {
    return fields.refuse("input_extra", fmt::format("must be a list of at most {}", kMaxFiles));
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string place = fmt::format("input_extra[{}]", i);
    if (!(*given)[i].is_object()) {
      return fields.refuse(place, "must be an object");
    }
    BodyFields inner((*given)[i], place + ".");
    InfillFile& file = out.files.emplace_back();
    inner.text("filename", file.name);
    inner.text("text", file.text);
    inner.find("time");  // when an editor took the text
    inner.refuse_unknown();
    fields.adopt(inner.status());
  }
}

// Reads fields that have a meaning only for llama-server: its slots, its order of samplers, its
// measurements and their print.
void pass_over_hints(BodyFields& fields) {
  for (const char* hint :
       {"id_slot", "n_cache_reuse", "n_indent", "n_keep", "response_fields", "samplers",
        "t_max_predict_ms", "t_max_prompt_ms", "timings_per_token"}) {
    fields.find(hint);
  }
}

// -1, as in llama-server: as many tokens as the context has room for.
void read_n_predict(BodyFields& fields, std::optional<int32_t>& out) {
  int32_t tokens = -1;
  fields.integer({"n_predict", {.min = -1}}, tokens);
  if (tokens >= 0) {
    out = tokens;
  }
}

}  // namespace

absl::StatusOr<CompletionRequest> parse_infill_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  CompletionRequest request;
  BodyFields fields(object);
  fields.text("model", request.model);
  read_options(fields, request.each);
  read_kv_cache(fields, request.each.kv);
  fields.texts("stop", request.each.stop);
  if (const std::optional<std::string> error = stop_error(request.each.stop, kStopLimits)) {
    fields.refuse("stop", *error);
  }
  fields.boolean("stream", request.stream);
  read_n_predict(fields, request.each.max_tokens);
  Infill infill{.field = "input_suffix"};
  std::string text;
  for (const auto& [name, member] :
       {std::pair("input_prefix", &text), std::pair("input_suffix", &infill.suffix),
        std::pair("prompt", &infill.begin)}) {
    fields.text(name, *member);
  }
  if (fields.find("input_prefix") == nullptr && fields.find("input_suffix") == nullptr) {
    fields.refuse("input_prefix", "is missing, and so is input_suffix");
  }
  read_files(fields, infill);
  pass_over_hints(fields);
  if (request.each.sampling.prompt_logprobs) {
    fields.refuse("prompt_logprobs", "is not shown by this route");
  }
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.include_usage = true;
  request.each.prompt_options.infill = std::move(infill);
  request.prompts.emplace_back(std::move(text));
  return request;
}

}  // namespace tessera
