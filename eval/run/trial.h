#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// One sequence for a model: a prompt and its continuation. A continuation is generated or forced.
// Forced tokens are set one by one, independent of the model's choices.
struct Trial {
  std::vector<int32_t> prompt{};  // not empty
  std::vector<int32_t> forced{};
  int32_t asked = 0;      // leading forced tokens that are a question, which has no score
  int32_t generate = 0;   // tokens to generate; only if nothing is forced
  float temperature = 0;  // for generated tokens; 0: the likeliest
  uint64_t seed = 0;      // for generated tokens
  // Scores every token, including the prompt's, and compares the full distribution after each of
  // them with the reference's. Only the reference generates; its generated tokens are forced on the
  // others.
  bool compare = false;

  size_t tokens() const {
    return prompt.size() + (forced.empty() ? static_cast<size_t>(generate) : forced.size());
  }
};

// KV memory of a sequence at its end, as allocated: measured, not computed.
struct KvUse {
  int64_t bytes = 0;
  int64_t tokens = 0;  // tokens of the sequence
  // Tokens that are kept in each (layer, KV head); empty if nothing is dropped.
  std::vector<int32_t> kept{};
};

struct TrialResult {
  // Log probabilities of the forced tokens after the question. A compared trial has those of all
  // tokens but the first. Entry p of a compared trial belongs to token p + 1 and to the
  // distribution after position p.
  std::vector<float> logprobs{};
  std::vector<uint8_t> likeliest{};  // 1 if greedy decoding would have chosen the token

  // For compared trials of every subject but the reference, one entry per position:
  std::vector<float> kl{};        // nats, KL(reference || subject)
  std::vector<uint8_t> agrees{};  // 1 if both have the same likeliest token

  std::vector<int32_t> generated{};
  std::string text{};  // generated text, if it is to contain an answer
  std::optional<KvUse> kv{};
};

}  // namespace tessera
