#include "server/openai/embeddings_request.h"

#include <fmt/format.h>

#include <string>

#include "base/status_macros.h"
#include "server/dialect/kv_cache.h"
#include "server/dialect/prompt_fields.h"
#include "server/dialect/request_options.h"
#include "server/json/body_fields.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

void read_encoding(BodyFields& fields, EmbeddingRequest& out) {
  std::string format = "float";
  fields.text("encoding_format", format);
  out.base64 = format == "base64";
  if (!out.base64 && format != "float") {
    fields.refuse("encoding_format", R"(must be "float" or "base64")");
  }
}

void read_pooling(BodyFields& fields, GenerateRequest& out) {
  std::string name;
  fields.text("pooling", name);
  if (!name.empty()) {
    out.pooling = parse_pooling(name);
    if (!out.pooling.has_value()) {
      fields.refuse("pooling", R"(must be "last", "mean" or "cls")");
    }
  }
}

// A list of millions of short texts is refused before each has a prompt's memory.
void refuse_many_inputs(BodyFields& fields) {
  const nlohmann::json* input = fields.find("input");
  if (input != nullptr && input->is_array() && input->size() > kMaxEmbeddingInputs &&
      (input->front().is_string() || input->front().is_array())) {
    fields.refuse("input", fmt::format("has {} inputs, 1 to {} are allowed", input->size(),
                                       kMaxEmbeddingInputs));
  }
}

}  // namespace

void read_embedding_options(BodyFields& fields, EmbeddingRequest& out) {
  fields.text("model", out.model);
  if (fields.find("dimensions") != nullptr) {
    fields.integer({"dimensions", {1}}, out.dimensions.emplace());
  }
  std::string user;  // an end user's name, which this server has no use for
  fields.text("user", user);
  read_pooling(fields, out.each);
  fields.boolean("add_special_tokens", out.each.prompt_options.add_bos);
  fields.integer({"priority"}, out.each.priority);
  fields.boolean("deterministic", out.each.deterministic);
  read_cache(fields, out.each);
  read_kv_cache(fields, out.each.kv);
}

absl::StatusOr<EmbeddingRequest> parse_embeddings_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  EmbeddingRequest request;
  BodyFields fields(object);
  read_embedding_options(fields, request);
  read_encoding(fields, request);
  fields.boolean("normalize", request.normalize);
  refuse_many_inputs(fields);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_RETURN_IF_ERROR(read_prompts(fields, "input", request.inputs));
  return request;
}

}  // namespace tessera
