#include "eval/trace/replay.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/tier/block_hash.h"
#include "engine/tier/block_tiers.h"
#include "eval/trace/counted_store.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/threads/thread_pool.h"

namespace tessera {
namespace {

// Tokens that a prompt takes at once. What they evict fits into the queue of the tiers.
constexpr int32_t kStepTokens = 8192;

// kv_demote without the contents of pages: it only releases pages.
void demote_empty_blocks(const KvDemoteArgs& args, Stream) {
  const FreeList free_list(args.pool);
  for (const PrefixBlock& block : args.prefix_blocks) {
    for (int64_t head = 0; head < int64_t{args.pool.pages.layers} * args.pool.pages.kv_heads;
         ++head) {
      int32_t* table = args.pool.prefix_block_table(block.handle, head);
      for (int32_t i = args.pool.prefix_block_pages_of(args.tier);
           i < args.pool.prefix_block_pages && table[i] != kNoPage; ++i) {
        free_list.release_page(table[i]);
        table[i] = kNoPage;
      }
    }
  }
}

Backend backend_without_contents() {
  Backend backend = cpu_backend(CpuIsa::scalar);
  backend.kv_demote = demote_empty_blocks;
  return backend;
}

// Tokens of a prompt, made from the names of the trace's blocks.
class Prompt {
 public:
  void read(const TraceRequest& request, int32_t block_tokens) {
    tokens_.clear();
    for (int32_t i = 0; i < request.prompt_tokens; ++i) {
      const int64_t block = request.blocks[static_cast<size_t>(i / kTraceBlock)];
      tokens_.push_back(static_cast<int32_t>(block * 31 + i % kTraceBlock));
    }
    hashes_.clear();
    for (size_t first = 0; first + static_cast<size_t>(block_tokens) <= tokens_.size();
         first += static_cast<size_t>(block_tokens)) {
      hashes_.push_back(
          block_hash(std::span(tokens_).subspan(first, static_cast<size_t>(block_tokens))));
    }
  }
  KvPrompt view(const ReplaySubject& subject) const {
    const KvFormat format = subject.preset.policy.high;
    return {tokens_, hashes_, "", format, subject.ladder.empty() ? format : subject.ladder.back()};
  }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> hashes_;
};

std::unique_ptr<BlockTiers> open_tiers(KvCache& kv, const ReplayBytes& bytes) {
  if (bytes.host == 0 && bytes.disk == 0) {
    return nullptr;
  }
  BlockTiers::Stores stores;
  stores.host = bytes.host > 0 ? std::make_unique<CountedStore>(bytes.host) : nullptr;
  stores.disk = bytes.disk > 0 ? std::make_unique<CountedStore>(bytes.disk) : nullptr;
  auto tiers = BlockTiers::over(std::move(stores), {}, kv.prefixes().stored_shape(), "a trace");
  kv.prefixes().store_in(*tiers);
  return tiers;
}

// Brings back what the tiers have of a prompt, as an engine does before it admits a sequence.
void restore(KvCache& kv, BlockTiers& tiers, const KvPrompt& prompt, ReplayResult& result) {
  SharedPrefixes& prefixes = kv.prefixes();
  const auto tokens = static_cast<int32_t>(prompt.tokens.size()) - 1;
  const KvMatch match = prefixes.whole_blocks_of(prefixes.match(prompt, tokens, {}));
  if (!prefixes.continued_in(prompt, tokens, match)) {
    return;
  }
  const KvTierStats before = tiers.stats();
  BlockReader& reader = tiers.reader();
  BlockReader::Job* const job = reader.free_job();
  TESSERA_CHECK(job != nullptr, "a replay has one job at a time");
  prefixes.describe(prompt, tokens, match, *job);
  reader.start(*job);
  SharedPrefixes::Restored path(prefixes, match);
  for (bool fits = true; fits && !reader.ended(*job);) {
    if (const BlockBuffer* const stored = reader.front(*job)) {
      fits = path.add(prompt, *stored);
      reader.pop(*job);
      if (tiers.writer().half_full()) {
        tiers.writer().drain();
      }
    } else {
      reader.wait(std::chrono::milliseconds(1));
    }
  }
  reader.release(*job);
  const KvTierStats after = tiers.stats();
  const int64_t block = prefixes.block_tokens();
  result.host_tokens += block * (after.host_read_blocks - before.host_read_blocks);
  result.disk_tokens += block * (after.disk_read_blocks - before.disk_read_blocks);
}

void save(KvCache& kv, BlockTiers& tiers) {
  while (kv.prefixes().save_some(std::numeric_limits<int32_t>::max())) {
    tiers.writer().drain();
  }
  tiers.writer().drain();
}

}  // namespace

absl::StatusOr<ReplayResult> replay(std::span<const TraceRequest> trace,
                                    const ReplaySubject& subject, int32_t head_dim,
                                    const ReplayBytes& bytes) {
  int32_t longest = 1;
  for (const TraceRequest& request : trace) {
    longest = std::max(longest, request.prompt_tokens);
  }
  std::unique_ptr<BlockTiers> tiers;  // the cache uses them to its end
  ThreadPool threads(1);
  const Backend backend = backend_without_contents();
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> kv,
                           KvCache::create({.preset = subject.preset,
                                            .prefix_cache = true,
                                            .ladder = subject.ladder,
                                            .layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = head_dim,
                                            .query_heads = 1,
                                            .slots = 1,
                                            .context = longest,
                                            .bytes = bytes.cache},
                                           backend, threads.stream()));
  ReplayResult result{.prefix_block_tokens = kv->prefixes().block_tokens(), .cache = {}};
  const KvPolicy& policy = subject.preset.policy;
  tiers = open_tiers(*kv, bytes);
  Prompt prompt;
  for (const TraceRequest& request : trace) {
    if (request.prompt_tokens == 0) {
      continue;
    }
    prompt.read(request, kv->prefixes().block_tokens());
    if (tiers != nullptr) {
      restore(*kv, *tiers, prompt.view(subject), result);
    }
    const KvMatch match =
        kv->prefixes().match(prompt.view(subject), std::numeric_limits<int32_t>::max(), {});
    KvSlot slot = kv->open_slot(policy, prompt.size());
    kv->prefixes().attach(slot, match);
    for (int32_t tokens = kv->prefixes().tokens_of(match); tokens < prompt.size();) {
      tokens = std::min(tokens + kStepTokens, prompt.size());
      const KvReservation wanted[] = {{slot, tokens}};
      kv->reserve(wanted);
      KvRow& row = kv->view().rows[slot.index()];  // as if the step had stored its tokens
      row.high = tokens / kKvGroup * kKvGroup - row.low;
      if (tiers != nullptr) {
        tiers->writer().drain();
      }
    }
    kv->prefixes().insert(slot, prompt.view(subject), prompt.size(), true);
    kv->release(std::move(slot));
    if (tiers != nullptr) {
      save(*kv, *tiers);
    }
    result.prompt_tokens += prompt.size();
    result.hit_tokens += kv->prefixes().tokens_of(match);
    result.low_tokens += match.low.blocks * kv->prefixes().block_tokens();
  }
  result.cache = kv->prefixes().stats();
  kv->check_integrity();
  return result;
}

}  // namespace tessera
