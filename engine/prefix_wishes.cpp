#include "engine/prefix_wishes.h"

#include <limits>
#include <utility>

#include "engine/kv/prefix_transfer.h"

namespace tessera {

KvPrompt cache_prompt_of(Sequence& sequence, const KvCache& kv) {
  KvPrompt prompt = sequence.cache_prompt(kv.prefixes().block_tokens());
  prompt.section_pages = kv.planning().section_pages(sequence.kv_policy());
  prompt.accepts_sections = sequence.accepts_sections();
  prompt.copies_short_blocks = !sequence.kv_policy().is_private();
  prompt.max_coarse = sequence.shareable() > 0 ? sequence.shareable() : prompt.max_coarse;
  return prompt;
}

int32_t PrefixWishes::pin(Sequence& sequence, int32_t tokens, std::chrono::seconds ttl, Time now) {
  const KvMatch path = prefixes_.match(cache_prompt_of(sequence, kv_), tokens, {});
  const TenantOfRequest& tenant = sequence.tenant();
  return prefixes_.pin(path, {now, ttl, tenant.id, tenant.pin_tokens}) ? prefixes_.tokens_of(path)
                                                                       : 0;
}

void PrefixWishes::keep(Sequence& sequence, Time now) {
  PromptInCache in_cache;
  if (!sequence.cache().release) {
    for (size_t i = 0; i < sequence.kept().size(); ++i) {
      const KeptPrefix& kept = sequence.kept()[i];
      if (kept.tokens != KeptPrefix::kAll) {
        in_cache.kept[i] = pin(sequence, kept.tokens, kept.ttl, now);
      }
    }
  }
  sequence.set_kept(in_cache);
}

void PrefixWishes::keep_prompts(const StepPlan& plan, Sequences sequences, Time now) {
  if (!prefixes_.enabled()) {
    return;
  }
  for (const StepPlan::Run& run : plan.runs) {
    Sequence& sequence = *sequences[static_cast<size_t>(run.candidate)];
    if (!sequence.is_kept() && sequence.uses_prefix_cache() &&
        std::cmp_greater_equal(sequence.stored(), sequence.prompt().size())) {
      keep(sequence, now);
    }
  }
}

void PrefixWishes::move(Sequence& sequence) {
  PrefixTransfer* const transfer = sequence.transfer();
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
    Sequence::Waiting* const waiting = sequence->waiting();
    if (!sequence->cache().prefetch || waiting == nullptr || (stores && !waiting->in_stores.over)) {
      continue;
    }
    if (prefixes_.enabled() && sequence->uses_prefix_cache()) {
      move(*sequence);
      const KvMatch path =
          prefixes_.match(cache_prompt_of(*sequence, kv_), sequence->max_cached_tokens(), {});
      prefixes_.touch(path);
      sequence->note_cached_tokens(prefixes_.tokens_of(path));
      keep(*sequence, now);
    }
    sequence->end(FinishReason::length);
    any = true;
  }
  return any;
}

// A sequence whose prompt was not computed has nothing to pin.
void PrefixWishes::finish(Sequence& sequence, Time now) {
  const EngineRequest::Cache& cache = sequence.cache();
  if (!sequence.is_kept() || !sequence.uses_prefix_cache() || !prefixes_.enabled()) {
    return;
  }
  constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  if (cache.pin && !cache.release) {
    pin(sequence, kAll, cache.ttl, now);
  }
  for (const KeptPrefix& kept : sequence.kept()) {
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
      prefixes_.give_up(path, sequence.tenant().id);
    }
  }
}

}  // namespace tessera
