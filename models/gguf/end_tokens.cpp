#include "models/gguf/end_tokens.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "base/status_macros.h"
#include "files/json_fields.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>",
                                      "<|eom_id|>",    "<|im_end|>",      "<|end|>",
                                      "<end_of_turn>", "<EOT>",           "_<EOT>"};

bool is_known_end(const json& text) {
  return text.is_string() && std::find(std::begin(kEnds), std::end(kEnds),
                                       text.get_ref<const std::string&>()) != std::end(kEnds);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> gguf_end_tokens(const GgufModel& model, int32_t vocab) {
  std::set<int32_t> ids;
  JsonFields fields(model.fields(), model.path().string());
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (fields.has(key)) ids.insert(fields.integer(key, 0, vocab - 1));
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_ASSIGN_OR_RETURN(const json tokens, model.value("tokenizer.ggml.tokens"));
  TESSERA_ASSIGN_OR_RETURN(const json types, model.value("tokenizer.ggml.token_type"));
  const size_t known = std::min({tokens.size(), types.size(), static_cast<size_t>(vocab)});
  for (size_t id = 0; id < known && tokens.is_array() && types.is_array(); ++id) {
    if (types[id] == kGgufControlToken && is_known_end(tokens[id])) {
      ids.insert(static_cast<int32_t>(id));
    }
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

}  // namespace tessera
