#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/generation/answer_text.h"

namespace tessera {

// Fields that every part of one answer repeats.
struct CompletionHead {
  bool chat = false;
  std::string id;       // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;  // seconds of the Unix epoch
  std::string model;
  std::optional<int32_t> logprobs{};         // number of most likely tokens shown
  std::optional<int32_t> prompt_logprobs{};  // the same for the prompt, reported separately
  bool usage = false;         // chunks have the field; null in chunks that report no usage
  std::string fingerprint{};  // of the server's configuration (system_fingerprint)
  bool legacy_calls = false;  // of a chat: an answer's call is its `function_call`
  bool token_ids = false;     // choices have their token ids, and those of the prompt
};

std::string print_completion(const CompletionHead& head, std::span<const ChoiceText> choices,
                             const Usage& usage);

// Server-sent events, "data: ...\n\n".
std::string print_event(const CompletionHead& head, const ChoiceText& part,
                        const std::optional<Usage>& usage);
std::string print_usage_event(const CompletionHead& head, const Usage& usage);
std::string print_error_event(const absl::Status& status);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// Description of a model in /v1/models.
struct ModelCard {
  std::string name;
  int64_t created = 0;
  int32_t context = 0;
  std::string root;      // the name of the model that `name` is an alias of, or `name`
  std::string parent{};  // the name of the model that an adapter changes; empty: it is none
};
std::string print_model(const ModelCard& model);
std::string print_models(std::span<const ModelCard> models);

// Replies of /tokenize and /detokenize in vLLM's format, which serves llama-server's clients too
// ("content" is its name for the text). `text_of`: of a token; none if texts are not requested,
// printed as null. Both lists may be long, so nothing but the reply takes memory.
std::string print_tokens(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of);
// As llama-server with with_pieces: each token is an object of its id and its piece. A piece is the
// token's text, or the list of its bytes if they are not valid UTF-8.
std::string print_pieces(std::span<const int32_t> tokens, int32_t context,
                         const std::function<std::string(int32_t)>& text_of);
std::string print_prompt(std::string_view text);

}  // namespace tessera
