#include "server/openai/embeddings_response.h"

#include <fmt/format.h>

#include <iterator>
#include <span>

#include "absl/strings/escaping.h"
#include "server/generation/embedding_run.h"
#include "server/json/print_json.h"

namespace tessera {

namespace {

// Numbers are the shortest that read back as the same f32.
void print_values(std::span<const float> values, bool base64, std::string& out) {
  if (base64) {
    out += '"';
    out += absl::Base64Escape(
        {reinterpret_cast<const char*>(values.data()), values.size_bytes()});  // little-endian
    out += '"';
    return;
  }
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", values[i]);
  }
  out += ']';
}

}  // namespace

std::string print_embeddings(std::string_view model, const EmbeddingRun& run) {
  std::string reply;
  reply.reserve(run.answer_bytes());
  reply += R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < run.size(); ++i) {
    fmt::format_to(std::back_inserter(reply), R"({}{{"object":"embedding","index":{},"embedding":)",
                   i > 0 ? "," : "", i);
    print_values(run.embedding(i), run.base64(), reply);
    reply += '}';
  }
  fmt::format_to(std::back_inserter(reply),
                 R"(],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}}}}}})",
                 print_json(model), run.prompt_tokens(), run.prompt_tokens(), run.cached_tokens());
  return reply;
}

}  // namespace tessera
