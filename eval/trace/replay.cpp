#include "eval/trace/replay.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/pages/free_list.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

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
          PrefixTree::hash(std::span(tokens_).subspan(first, static_cast<size_t>(block_tokens))));
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

}  // namespace

absl::StatusOr<ReplayResult> replay(std::span<const TraceRequest> trace,
                                    const ReplaySubject& subject, int32_t head_dim, int64_t bytes) {
  int32_t longest = 1;
  for (const TraceRequest& request : trace) {
    longest = std::max(longest, request.prompt_tokens);
  }
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
                                            .bytes = bytes},
                                           backend, threads.stream()));
  ReplayResult result{.prefix_block_tokens = kv->prefixes().block_tokens(), .cache = {}};
  const KvPolicy& policy = subject.preset.policy;
  Prompt prompt;
  for (const TraceRequest& request : trace) {
    if (request.prompt_tokens == 0) {
      continue;
    }
    prompt.read(request, kv->prefixes().block_tokens());
    const KvMatch match =
        kv->prefixes().match(prompt.view(subject), std::numeric_limits<int32_t>::max(), {});
    KvSlot slot = kv->open_slot(policy, prompt.size());
    kv->prefixes().attach(slot, match);
    const KvReservation wanted[] = {{slot, prompt.size()}};
    kv->reserve(wanted);
    const KvPagesView pages = kv->view();
    KvRow& row = pages.rows[slot.index()];
    row.high = prompt.size() / kKvGroup * kKvGroup - row.low;
    kv->prefixes().insert(slot, prompt.view(subject), prompt.size(), true);
    kv->release(std::move(slot));
    result.prompt_tokens += prompt.size();
    result.hit_tokens += kv->prefixes().tokens_of(match);
    result.low_tokens += match.low_blocks * kv->prefixes().block_tokens();
  }
  result.cache = kv->prefixes().stats();
  kv->check_integrity();
  return result;
}

}  // namespace tessera
