#include "server/openai/embeddings_request.h"

#include <fmt/format.h>

#include <string>

#include "models/status_macros.h"
#include "server/openai/body_fields.h"
#include "server/openai/kv_cache.h"
#include "server/openai/prompt_fields.h"
#include "server/openai/request_options.h"

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

}  // namespace

absl::StatusOr<EmbeddingRequest> parse_embeddings_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json object, parse_body(body));
  EmbeddingRequest request;
  BodyFields fields(object);
  fields.text("model", request.model);
  read_encoding(fields, request);
  if (fields.find("dimensions") != nullptr) {
    fields.integer({"dimensions", {1}}, request.dimensions.emplace());
  }
  std::string user;  // an end user's name, which this server has no use for
  fields.text("user", user);
  read_pooling(fields, request.each);
  fields.boolean("normalize", request.normalize);
  fields.boolean("add_special_tokens", request.each.prompt_options.add_bos);
  fields.integer({"priority"}, request.each.priority);
  fields.boolean("deterministic", request.each.deterministic);
  read_cache(fields, request.each);
  read_kv_cache(fields, request.each.kv);
  fields.find("input");
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_RETURN_IF_ERROR(read_prompts(fields, "input", request.inputs));
  return request;
}

}  // namespace tessera
