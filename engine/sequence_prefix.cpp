#include "engine/sequence_prefix.h"

#include <bit>
#include <functional>
#include <limits>

#include "engine/kv/kv_shareable.h"
#include "engine/kv/prefix_tree.h"
#include "engine/tier/block_hash.h"

namespace tessera {
namespace {

uint64_t bits_of(const KvPolicy& policy) {
  const KvFormat format = policy.high;
  const uint64_t section =
      policy.replays() ? std::bit_cast<uint32_t>(policy.budget().amount.share()) : 0;
  return (section * 0x9e3779b97f4a7c15) ^
         (uint64_t{format.e4m3} << 49 | uint64_t{format.rotated} << 48 |
          uint64_t{format.key_keep} << 32 | uint64_t{format.value_keep} << 16 |
          static_cast<uint64_t>(format.key_bits << 8 | format.value_bits));
}

int32_t first_max_inserted(const SequenceRequest& request, int32_t prompt_tokens) {
  const KvPolicy& policy = request.kv.policy;
  if (policy.is_private()) {
    return request.cache.pin ? prompt_tokens : 0;
  }
  return policy.one_by_one() ? prompt_tokens : std::numeric_limits<int32_t>::max();
}

}  // namespace

SequencePrefix::SequencePrefix(const SequenceRequest& request, int32_t prompt_tokens,
                               int32_t most_tokens)
    : request_(request),
      prompt_tokens_(prompt_tokens),
      max_inserted_tokens_(first_max_inserted(request, prompt_tokens)) {
  const auto groups = static_cast<size_t>(most_tokens / kKvGroup);  // a block has at least one
  block_hashes_.reserve(groups);
  path_hashes_.reserve(groups);
}

KvPrompt SequencePrefix::prompt(std::span<const int32_t> tokens, int32_t prefix_block_tokens,
                                int32_t section_pages) {
  const KvPolicy& policy = request_.kv.policy;
  const SequenceRequest::Cache& cache = request_.cache;
  const auto block = static_cast<size_t>(prefix_block_tokens);
  while ((block_hashes_.size() + 1) * block <= tokens.size()) {
    const uint64_t before = path_hashes_.empty()
                                ? std::hash<std::string>()(cache.salt) ^ bits_of(policy)
                                : path_hashes_.back();
    block_hashes_.push_back(block_hash(tokens.subspan(block_hashes_.size() * block, block)));
    path_hashes_.push_back((before ^ block_hashes_.back()) * 0x9e3779b97f4a7c15 + before);
  }
  KvPrompt prompt{tokens, block_hashes_, cache.salt, policy.high, cache.accept, section_pages};
  prompt.accepts_sections = cache.accepts_sections;
  prompt.copies_short_blocks = !policy.is_private();
  prompt.max_coarse = request_.shareable > 0 ? request_.shareable : prompt.max_coarse;
  return prompt;
}

int32_t SequencePrefix::max_cached_tokens(int32_t first_unobserved) const {
  const KvPolicy& policy = request_.kv.policy;
  return policy.is_private() || policy.one_by_one() ? std::min(first_unobserved, shareable_prompt())
                                                    : first_unobserved;
}

void SequencePrefix::mark_recurring(int32_t tokens) {
  // Tokens that another sequence with this prompt could not match are left to the policy.
  max_inserted_tokens_ = std::max(max_inserted_tokens_, std::min(tokens, shareable_prompt()));
}

int32_t SequencePrefix::shareable_prompt() const {
  return shareable_tokens(request_.kv.policy, prompt_tokens_);
}

PromptInCache SequencePrefix::in_cache() const {
  PromptInCache in_cache = kept_.value_or(PromptInCache{});
  in_cache.cached_tokens = cached_tokens();
  return in_cache;
}

}  // namespace tessera
