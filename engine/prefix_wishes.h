#pragma once

#include <chrono>

#include "engine/kv/kv_cache.h"
#include "engine/kv/shared_prefixes.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace tessera {

// Returns: the sequence's tokens for a lookup in the prefix cache.
KvPrompt cache_prompt_of(Sequence& sequence, const KvCache& kv);

// Does what requests wish of the prefix cache beside being found in it: pins (RequestInput::kept,
// Cache::pin) and hints (Cache::demote, release, prefetch). Used by the engine thread.
class PrefixWishes {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit PrefixWishes(KvCache& kv) : kv_(kv), prefixes_(kv.prefixes()) {}

  // Pins the beginnings of prompts that this step has completed. Called when their blocks are in
  // the cache, before their first tokens are published.
  void keep_prompts(const StepPlan& plan, Sequences sequences, Time now);

  // Ends the prefetches for which no store is read any more, with their transfers.
  // Returns: true if there were any.
  bool end_prefetches(Sequences sequences, bool stores, Time now);

  // Pins and hints of a sequence that has ended.
  // Requires: its blocks are in the cache, and its slot is released.
  void finish(Sequence& sequence, Time now);

 private:
  void keep(Sequence& sequence, Time now);
  void move(Sequence& sequence);  // its transfer
  // Returns: the tokens that are pinned; 0: too many.
  int32_t pin(Sequence& sequence, int32_t tokens, std::chrono::seconds ttl, Time now);

  KvCache& kv_;
  SharedPrefixes& prefixes_;
};

}  // namespace tessera
