#include "engine/prefix_wishes.h"

#include <limits>
#include <utility>

#include "engine/kv/prefix_transfer.h"

namespace tessera {

KvPrompt cache_prompt_of(Sequence& sequence, const KvCache& kv) {
  return sequence.prefix().prompt(sequence.tokens().known(), kv.prefixes().block_tokens(),
                                  kv.planning().section_pages(sequence.request().kv.policy));
}

int32_t PrefixWishes::pin(Sequence& sequence, int32_t tokens, std::chrono::seconds ttl, Time now) {
  const KvMatch path = prefixes_.match(cache_prompt_of(sequence, kv_), tokens, {});
  const TenantOfRequest& tenant = sequence.place().tenant();
  return prefixes_.pin(path, {now, ttl, tenant.id, tenant.pin_tokens}) ? prefixes_.tokens_of(path)
                                                                       : 0;
}

void PrefixWishes::keep(Sequence& sequence, Time now) {
  PromptInCache in_cache;
  if (!sequence.request().cache.release) {
    for (size_t i = 0; i < sequence.request().cache.kept.size(); ++i) {
      const KeptPrefix& kept = sequence.request().cache.kept[i];
      if (kept.tokens != KeptPrefix::kAll) {
        in_cache.kept[i] = pin(sequence, kept.tokens, kept.ttl, now);
      }
    }
  }
  sequence.prefix().set_kept(in_cache);
}

void PrefixWishes::keep_prompts(const StepPlan& plan, Sequences sequences, Time now) {
  if (!prefixes_.enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    if (!sequence.prefix().is_kept() && sequence.prefix().uses_cache() &&
        sequence.state().stored() >= sequence.tokens().prompt_size()) {
      keep(sequence, now);
    }
  }
}

void PrefixWishes::move(Sequence& sequence) {
  PrefixTransfer* const transfer = sequence.request().cache.transfer.get();
  if (transfer == nullptr) {
    return;
  }
  const KvPrompt prompt = cache_prompt_of(sequence, kv_);
  const KvMatch path = prefixes_.match(prompt, sequence.max_cached_tokens(), {});
  transfer->enters ? prefixes_.read_in(prompt, path, *transfer)
                   : prefixes_.write_out(prompt, path, *transfer);
}

bool PrefixWishes::end_prefetches(Sequences sequences, bool stores, Time now) {
  bool any = false;
  for (const auto& sequence : sequences) {
    SequenceState::Waiting* const waiting = sequence->state().waiting();
    if (!sequence->request().cache.prefetch || waiting == nullptr ||
        (stores && !waiting->in_stores.over)) {
      continue;
    }
    if (prefixes_.enabled() && sequence->prefix().uses_cache()) {
      move(*sequence);
      const KvMatch path =
          prefixes_.match(cache_prompt_of(*sequence, kv_), sequence->max_cached_tokens(), {});
      prefixes_.touch(path);
      sequence->prefix().note_cached(prefixes_.tokens_of(path));
      keep(*sequence, now);
    }
    sequence->end(FinishReason::length);
    any = true;
  }
  return any;
}

// A sequence whose prompt was not computed has nothing to pin.
void PrefixWishes::finish(Sequence& sequence, Time now) {
  const EngineRequest::Cache& cache = sequence.request().cache;
  if (!sequence.prefix().is_kept() || !sequence.prefix().uses_cache() || !prefixes_.enabled()) {
    return;
  }
  constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  if (cache.pin && !cache.release) {
    pin(sequence, kAll, cache.ttl, now);
  }
  for (const KeptPrefix& kept : sequence.request().cache.kept) {
    if (kept.tokens == KeptPrefix::kAll && !cache.release) {
      pin(sequence, kAll, kept.ttl, now);
    }
  }
  if (cache.demote || cache.release) {
    const KvMatch path = prefixes_.match(cache_prompt_of(sequence, kv_), kAll, {});
    if (cache.demote) {
      prefixes_.demote(path);
    }
    if (cache.release) {
      prefixes_.give_up(path, sequence.place().tenant().id);
    }
  }
}

}  // namespace tessera
