#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// A question and its answer, in tokens.
struct Turn {
  int32_t asked = 0;     // 0: the question ends the prompt
  int32_t answered = 0;  // > 0
};

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
  // Not empty: the trial asks. These turns are `forced`, in order, with `asked` 0. The
  // distributions of all forced tokens but the first are compared. Trials that follow each other
  // with the same prompt are forks of it (run/forked_prompts.h).
  std::vector<Turn> turns{};

  size_t tokens() const {
    return prompt.size() + (forced.empty() ? static_cast<size_t>(generate) : forced.size());
  }
  // Number of distributions that are compared.
  size_t compared() const { return compare ? tokens() : turns.empty() ? 0 : forced.size() - 1; }
  // Returns: position of the token after which distribution `entry` of TrialResult::kl comes.
  size_t position(size_t entry) const { return turns.empty() ? entry : prompt.size() + entry; }
};

// KV memory of a sequence at its end, as allocated: measured, not computed.
struct KvUse {
  int64_t bytes = 0;
  int64_t tokens = 0;  // tokens of the sequence
  // Tokens that are kept in each (layer, KV head); empty if nothing is dropped.
  std::vector<int32_t> kept{};
};

struct TrialResult {
  // Log probabilities of the forced tokens after the question, or of all answers of the turns. A
  // compared trial has those of all tokens but the first. Entry p of a compared trial belongs to
  // token p + 1 and to the distribution after position p.
  std::vector<float> logprobs{};
  std::vector<uint8_t> likeliest{};  // 1 if greedy decoding would have chosen the token

  // For compared trials and turns of every subject but the reference, one entry per distribution:
  std::vector<float> kl{};        // nats, KL(reference || subject)
  std::vector<uint8_t> agrees{};  // 1 if both have the same likeliest token

  std::vector<int32_t> generated{};
  std::string text{};  // generated text, if it is to contain an answer
  std::optional<KvUse> kv{};
  // First position whose query reads keys and values that the policy has changed (run/acting.h); no
  // value: none does, or it is not known, as over HTTP.
  std::optional<int32_t> acted_from{};
};

}  // namespace tessera
