#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/kv/kv_match.h"
#include "engine/sequence_request.h"

namespace tessera {

// What a sequence takes from the prefix cache and leaves in it. The hashes of its blocks name its
// path; its request says which formats it reads.
class SequencePrefix {
 public:
  // request: outlives this. most_tokens: of the sequence; memory for their hashes is reserved.
  SequencePrefix(const SequenceRequest& request, int32_t prompt_tokens, int32_t most_tokens);

  bool uses_cache() const { return request_.cache.use; }

  // ---- lookup
  // Returns: the tokens with the hashes of their prefix blocks, for a lookup. The spans point into
  // `tokens` and into this.
  // tokens: those known so far; they only grow. section_pages: see KvPrompt.
  KvPrompt prompt(std::span<const int32_t> tokens, int32_t prefix_block_tokens,
                  int32_t section_pages);
  // Hash over salt, format and the prefix blocks [0, block]. Equal inputs have equal hashes.
  uint64_t path_hash(int32_t block) const { return path_hashes_[static_cast<size_t>(block)]; }
  std::span<const uint64_t> path_hashes() const { return path_hashes_; }  // by prompt(), so far
  int32_t hashed_blocks() const { return static_cast<int32_t>(path_hashes_.size()); }

  // ---- what it takes
  // Returns: maximum number of first tokens that it may take. Later ones must be computed for one
  // of these reasons:
  // - the event sink has yet to receive their logits or hidden states, from `first_unobserved` on,
  // - the policy scores their queries,
  // - the residual buffer needs them unquantised,
  // - they are generated and read selected tiles (KvPolicy::one_by_one), but cached ones may have
  //   been computed as a prompt, which reads all tiles.
  int32_t max_cached_tokens(int32_t first_unobserved) const;
  // Tokens of its latest match. The match itself is in SequenceState::Waiting.
  int32_t matched_tokens() const { return matched_tokens_; }
  void note_match(int32_t tokens) { matched_tokens_ = tokens; }
  // Its first admission began with that many cached tokens; later calls have no effect.
  void note_cached(int32_t tokens) { cached_tokens_ = cached_tokens_.value_or(tokens); }
  int32_t cached_tokens() const { return cached_tokens_.value_or(0); }

  // ---- what it leaves
  // Returns: maximum number of its first tokens that it may insert.
  // - A policy that is not private: all tokens. With dense newest tokens or selected tiles
  //   (KvPolicy::one_by_one) the prompt alone, because generated tokens have read other inputs.
  // - A private policy: the prompt if the request pins it, else the recurring part of the prompt.
  //   Other tokens stay its own, because pages that a prefix block shares cannot be compressed.
  int32_t max_inserted_tokens() const { return max_inserted_tokens_; }
  int32_t max_inserted_prompt_tokens() const {  // the same for the prompt alone
    return std::min(max_inserted_tokens_, prompt_tokens_);
  }
  // The first `tokens` tokens of the prompt occurred in an earlier prompt (SharedPrefixes::record).
  void mark_recurring(int32_t tokens);
  // The beginnings of its prompt that are kept: set once, when its prompt is in the cache.
  bool is_kept() const { return kept_.has_value(); }
  void set_kept(const PromptInCache& kept) { kept_ = kept; }
  PromptInCache in_cache() const;  // for the client

 private:
  int32_t shareable_prompt() const;

  const SequenceRequest& request_;
  const int32_t prompt_tokens_;
  std::vector<uint64_t> block_hashes_;
  std::vector<uint64_t> path_hashes_;
  int32_t max_inserted_tokens_;
  int32_t matched_tokens_ = 0;
  std::optional<int32_t> cached_tokens_;
  std::optional<PromptInCache> kept_;
};

}  // namespace tessera
