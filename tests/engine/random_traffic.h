#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "engine/kv/kv_presets.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/kv_named.h"

namespace tessera {

// A lossy policy that keeps every token, so that texts can be checked. Its sequences are scored,
// compressed and swapped, match cached blocks, and insert recurring prompts.
inline KvPreset lossy_in_name() {
  KvPreset preset = *find_kv_preset("streaming");
  preset.policy.budget().amount = KvAmount::of_share(1);
  return preset;
}

// A policy that replays sections and keeps every token of them, so that texts can be checked. The
// tokens of replays come and go, and whole sections are shared. Behind sections of several groups,
// short blocks are shared too.
inline KvPreset replaying_in_name(int32_t section) {
  KvPreset preset = kv_named(kReplaying);
  preset.policy.high = kKvF16;
  preset.policy.low = kKvF16;
  preset.policy.budget().amount = KvAmount::of_share(1);
  preset.policy.section = section;
  return preset;
}

// Random options and requests of one to five tenants, with one or two KV presets. Some options have
// a ladder that compresses blocks in the background. The same seed draws the same.
class RandomTraffic {
 public:
  explicit RandomTraffic(uint64_t seed)
      : random_(seed),
        tenants_(chance(0.5) ? 1 : pick(2, 5)),
        section_(kKvGroup * pick(1, 3)),
        also_(chance(0.5)   ? std::vector<KvPreset>{}
              : chance(0.5) ? std::vector<KvPreset>{lossy_in_name()}
                            : std::vector<KvPreset>{replaying_in_name(section_)}),
        section_step_(chance(0.4)),
        window_(may_have_windows() && chance(0.5) ? pick(1, 200) : 0) {}

  int32_t window() const { return window_; }  // of the model's second layer; 0: none

  int32_t tenants() const { return tenants_; }
  KvPreset own_preset() const {
    return also_.empty() && !section_step_ ? kKvPresetF32 : kKvPresetF16;
  }
  const std::vector<KvPreset>& also() const { return also_; }  // allowed besides own_preset()

  int32_t pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  // Returns: options without a clock, with memory for one to four whole contexts.
  EngineOptions random_options() {
    EngineOptions options;
    options.context = pick(20, 400);
    options.max_sequences = pick(1, 12);
    options.max_step_tokens = options.max_sequences + pick(0, 60);
    options.max_queue = pick(1, 20);
    options.prefix_cache = section_step_ || chance(0.8);
    if (section_step_) {
      options.kv_section_step = replaying_in_name(section_);
    }
    const KvCacheOptions kv = FakeEngine::kv_options(options, own_preset(), also_, window_);
    const auto min = static_cast<int32_t>(context_row_pages(kv));
    options.kv_bytes = kv_memory(kv, min + pick(0, 3 * min));
    return options;
  }

  EngineRequest random_request(int32_t context, std::chrono::steady_clock::time_point now) {
    EngineRequest request;
    const int32_t length = chance(0.2) ? context - 1 : pick(1, context / 2);
    request.prompt = random_beginning(length);
    while (std::ssize(request.prompt) < length) {
      request.prompt.push_back(pick(3, FakeModel::kVocab - 1));
    }
    request.cache_salt = chance(0.8) ? "" : "salt";
    request.cache.use = chance(0.9);
    request.cache.pin = chance(0.05);
    request.cache.ttl = std::chrono::seconds(pick(0, 1));
    request.cache.release = chance(0.05);
    if (chance(0.1)) {
      request.kept = {{pick(1, length), std::chrono::seconds(pick(0, 2))}};
    }
    if (chance(0.02)) {
      request.prompt.back() = FakeModel::kPoison;
    }
    request.max_tokens = chance(0.3) ? context : pick(1, 30);
    request.sampling.temperature = chance(0.5) ? 0.0f : 1.0f;
    request.sampling.seed = random_();
    request.sampling.top_k = chance(0.3) ? 5 : 0;
    request.ignore_eos = chance(0.5);
    request.priority = chance(0.7) ? 0 : pick(-2, 2);
    if (tenants_ > 1) {
      const int32_t tenant = pick(1, tenants_);
      request.tenant = {.id = tenant, .share = tenant * tenant, .pin_tokens = 64 * pick(0, 4)};
      if (chance(0.05)) {
        request.start_by = now + std::chrono::milliseconds(pick(0, 200));
      }
    }
    if (chance(0.05)) {
      request.max_tokens = 0;
    } else if (chance(0.05)) {
      const int32_t room = std::min(context - length, 10);
      for (int32_t i = pick(1, room); i > 0; --i) {
        request.forced.push_back(pick(3, FakeModel::kVocab - 1));
      }
    }
    if (!also_.empty() && chance(0.5)) {
      request.kv = also_.front();
    }
    request.observe_logits = chance(0.05);
    if (chance(0.05)) {
      request.sampling.prompt_logprobs = pick(0, 3);
    }
    if (chance(0.2)) {  // texts that repeat themselves, so that drafts from them are often right
      request.sampling.allowed_token_ids = {pick(3, 30), pick(31, FakeModel::kVocab - 1)};
      request.ignore_eos = true;
    }
    if (chance(0.1)) {
      request.deadline = now + std::chrono::milliseconds(pick(0, 200));
    }
    return request;
  }

  // Later prompts may begin with this text.
  void remember(std::span<const int32_t> prompt, std::span<const int32_t> answer) {
    if (texts_.size() < 50) {
      texts_.emplace_back(prompt.begin(), prompt.end());
      texts_.back().insert(texts_.back().end(), answer.begin(), answer.end());
    }
  }

 private:
  // Layers with a window stand beside policies that replay, and beside no other that drops tokens.
  bool may_have_windows() const {
    return !section_step_ && (also_.empty() || also_.front().policy.replays());
  }

  // Prompts begin like other prompts, or with the prompt and answer of an earlier request.
  std::vector<int32_t> random_beginning(int32_t length) {
    std::vector<int32_t> tokens;
    if (chance(0.5) && !texts_.empty()) {
      tokens = texts_[static_cast<size_t>(pick(0, static_cast<int32_t>(texts_.size()) - 1))];
    } else if (chance(0.6)) {
      const int32_t family = pick(0, 2);
      for (int32_t i = 0; i < length; ++i) {
        tokens.push_back(3 + (family * 17 + i * i) % (FakeModel::kVocab - 3));
      }
      tokens.resize(static_cast<size_t>(pick(1, length)));
    }
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(length)));
    return tokens;
  }

  std::mt19937_64 random_;
  int32_t tenants_;
  int32_t section_;  // tokens
  std::vector<KvPreset> also_;
  bool section_step_;
  int32_t window_;
  std::vector<std::vector<int32_t>> texts_;  // prompts and their answers
};

}  // namespace tessera
