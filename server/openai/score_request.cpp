#include "server/openai/score_request.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "server/json/body_fields.h"
#include "server/json/print_json.h"
#include "server/openai/embeddings_request.h"
#include "server/request/request_limits.h"

namespace tessera {

namespace {

using nlohmann::json;

// Bytes of a pair in the answer besides its text.
constexpr std::size_t kPairBytes = 96;

// Names of the two sides of a pair, as clients of different servers send them.
struct Sides {
  std::string_view first;
  std::string_view second;
};
constexpr Sides kSides[] = {
    {"text_1", "text_2"}, {"queries", "items"}, {"queries", "documents"}, {"data_1", "data_2"}};

// Reads a text: a string, or an object with the member `text`.
void read_text(BodyFields& fields, const std::string& place, const json& value,
               EmbeddingRequest& out) {
  if (value.is_string()) {
    out.inputs.emplace_back(value.get_ref<const std::string&>());
    return;
  }
  if (!value.is_object()) {
    return fields.refuse(
        place, fmt::format(R"(must be a text or an object with "text", not {})", excerpt(value)));
  }
  BodyFields inner(value, place + ".");
  std::string type = "text";
  inner.text("type", type);
  if (type != "text") {
    inner.refuse("type", R"(must be "text": only texts are supported)");
  }
  std::string text;
  inner.text("text", text);
  if (inner.find("text") == nullptr) {
    inner.refuse("text", "is missing");
  }
  inner.refuse_unknown();
  fields.adopt(inner.status());
  out.inputs.emplace_back(std::move(text));
}

// Reads a text or a list of texts.
// Returns: their number.
std::size_t read_texts(BodyFields& fields, std::string_view name, EmbeddingRequest& out) {
  const std::size_t before = out.inputs.size();
  const json* value = fields.find(name);
  if (value == nullptr) {
    fields.refuse(name, "is missing");
  } else if (!value->is_array()) {
    read_text(fields, std::string(name), *value, out);
  } else if (value->empty() || value->size() > kMaxEmbeddingInputs) {
    fields.refuse(
        name, fmt::format("has {} texts, 1 to {} are allowed", value->size(), kMaxEmbeddingInputs));
  } else {
    out.inputs.reserve(before + value->size());
    for (std::size_t i = 0; i < value->size() && fields.status().ok(); ++i) {
      read_text(fields, fmt::format("{}[{}]", name, i), (*value)[i], out);
    }
  }
  return out.inputs.size() - before;
}

// Returns: the names that the body has. A body with none of them is asked for the first.
Sides sides_of(BodyFields& fields) {
  for (const Sides& sides : kSides) {
    if (fields.find(sides.first) != nullptr && fields.find(sides.second) != nullptr) {
      return sides;
    }
  }
  for (const Sides& sides : kSides) {
    if (fields.find(sides.first) != nullptr || fields.find(sides.second) != nullptr) {
      return sides;
    }
  }
  return kSides[0];
}

// A query is one text.
void read_query(BodyFields& fields, ScoreRequest& out) {
  const json* query = fields.find("query");
  if (query == nullptr || query->is_array()) {
    return fields.refuse("query", query == nullptr ? "is missing" : "must be one text, not a list");
  }
  read_text(fields, "query", *query, out.embed);
  out.pairs.firsts = 1;
}

// Counts the answer's bytes, and prints the documents that it repeats.
void plan_answer(bool with_documents, ScoreRequest& out) {
  const std::vector<Prompt>& inputs = out.embed.inputs;
  std::size_t bytes = inputs.size() * kPairBytes;
  for (std::size_t i = out.pairs.firsts; with_documents && i < inputs.size(); ++i) {
    out.pairs.documents.push_back(print_json(std::get<std::string>(inputs[i])));
    bytes += 2 * out.pairs.documents.back().size();  // kept and in the answer
  }
  out.embed.answer_bytes = bytes;
}

}  // namespace

absl::StatusOr<ScoreRequest> parse_score_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  ScoreRequest request;
  BodyFields fields(object);
  read_embedding_options(fields, request.embed);
  const Sides sides = sides_of(fields);
  request.pairs.firsts = read_texts(fields, sides.first, request.embed);
  const std::size_t seconds = read_texts(fields, sides.second, request.embed);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  if (request.pairs.firsts != 1 && request.pairs.firsts != seconds) {
    return invalid_field(
        sides.first, fmt::format("{} has {} texts and {} has {}: send one, or as many", sides.first,
                                 request.pairs.firsts, sides.second, seconds));
  }
  request.embed.fields = {sides.second, sides.first, request.pairs.firsts};
  plan_answer(/*with_documents=*/false, request);
  return request;
}

absl::StatusOr<ScoreRequest> parse_rerank_request(std::string_view body) {
  TESSERA_ASSIGN_OR_RETURN(const json object, parse_body(body));
  ScoreRequest request;
  BodyFields fields(object);
  read_embedding_options(fields, request.embed);
  read_query(fields, request);
  read_texts(fields, "documents", request.embed);
  int32_t top_n = 0;
  fields.integer({"top_n", {.min = 0}}, top_n);
  request.pairs.top_n = static_cast<std::size_t>(top_n);
  bool with_documents = true;
  fields.boolean("return_documents", with_documents);
  fields.refuse_unknown();
  TESSERA_RETURN_IF_ERROR(fields.status());
  request.pairs.ranked = true;
  request.embed.fields = {"documents", "query", 1};
  plan_answer(with_documents, request);
  return request;
}

}  // namespace tessera
