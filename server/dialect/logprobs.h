#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "server/generation/answer_text.h"

namespace tessera {

// Log probabilities as JSON. `wanted`: number of most likely tokens that are shown for each token.

// Returns: {"token","logprob","bytes","top_logprobs"}.
nlohmann::ordered_json token_logprobs(const ChosenToken& chosen, int32_t wanted);

// Returns: those of a choice of a chat.
nlohmann::ordered_json chat_logprobs(const ChoiceText& choice, int32_t wanted);

// Returns: OpenAI's legacy format, as lm-evaluation-harness and others read it: lists of equal
// length, null for the first token of a prompt. The tokens, one after the other, are the text.
nlohmann::ordered_json completion_logprobs(const ChoiceText& choice, int32_t wanted);

// Returns: vLLM's format: by token id, null for the first token.
nlohmann::ordered_json prompt_logprobs_json(const std::vector<ChosenToken>& prompt, int32_t wanted);

}  // namespace tessera
