#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/kv/kv_cache.h"
#include "engine/request.h"
#include "engine/token_grammar.h"
#include "kernels/backend.h"
#include "models/transformer.h"
#include "models/weights/aligned_memory.h"

namespace tessera {

// A sequence whose next tokens are to be drafted. Nothing is owned.
struct DraftWish {
  RequestId id = 0;                       // of the sequence
  std::span<const int32_t> tokens;        // all known ones
  int32_t most = 0;                       // tokens to draft
  int32_t left = 0;                       // tokens that the sequence may still get
  std::span<const int32_t> stop_ids;      // never drafted, since nothing comes behind them; sorted
  TokenConstraint* constraint = nullptr;  // its grammar; null: none
  std::array<int32_t, kMostDrafted> drafted = {};  // written
  int32_t count = 0;                               // of these
};

// A second, smaller model of the same vocabulary that drafts tokens (speculative decoding,
// Leviathan et al., arXiv 2211.17192). It takes the likeliest token each time, among those that a
// grammar allows. The first model chooses every token of the text, so these choices change its
// speed alone.
//
// It has a KV cache of its own, for some sequences and one whole context in all, in k8v8. A
// sequence is caught up with when its next tokens are wished for, some tokens at a time: its prompt
// first, later what it got without this model. So neither preemption nor a prefix from the cache
// needs care. The sequence that was drafted for the longest time ago makes room for others.
class DraftModel {
 public:
  static constexpr int32_t kSequences = kDraftingTokens / 2;  // each may get one drafted token
  static constexpr int32_t kStepTokens = 64;                  // of one step, over all sequences

  // Returns: the largest step, for the transformer that the draft model gets.
  static StepLimits limits(const EngineOptions& options);
  // Returns: its KV cache.
  static KvCacheOptions cache_options(const EngineOptions& options, const ModelConfig& model,
                                      const Backend& backend);

  // Requires: the model was loaded for limits(options).
  // first: the model that chooses tokens; by its weights the cost of a step is estimated
  // Errors: InvalidArgument if its context is shorter than that of `options`; Unimplemented on a
  // device; those of KvCache::create.
  static absl::StatusOr<std::unique_ptr<DraftModel>> create(const EngineOptions& options,
                                                            std::unique_ptr<Transformer> model,
                                                            const Transformer& first,
                                                            const Backend& backend, Stream stream);

  // Drafts for all wishes together. A sequence that is not caught up with yet gets no tokens.
  // Requires: at most kSequences wishes; the drafted tokens close no group (kKvGroup) of a
  // sequence.
  void draft(std::span<DraftWish> wishes);

  // Calls keeps(id) for each sequence that it knows, and forgets those for which it is false.
  template <class Keeps>
  void forget_unless(const Keeps& keeps) {
    for (Known& known : known_) {
      if (known.slot.has_value() && !keeps(known.id)) release(known);
    }
  }

  float step_cost() const { return step_cost_; }  // in steps of the first model
  int64_t bytes() const;                          // weights, workspace and KV cache

 private:
  // A sequence in the cache.
  struct Known {
    RequestId id = 0;
    std::optional<KvSlot> slot;  // none: room for a sequence
    int32_t stored = 0;
    // Stored tokens behind the known ones of the last call, which may not have been chosen.
    int32_t first_drafted = 0;
    std::array<int32_t, kMostDrafted> drafted = {};
    uint64_t used = 0;  // number of the last call
  };
  // A wish that is being served.
  struct Active {
    DraftWish* wish = nullptr;
    Known* known = nullptr;
    int32_t pending = 0;  // tokens of the next step
  };

  DraftModel(const EngineOptions& options, std::unique_ptr<Transformer> model,
             std::unique_ptr<KvCache> kv, AlignedMemory logits, const Transformer& first,
             Stream stream);

  Known& find_or_open(RequestId id);
  Known* least_recent();
  void release(Known& known);
  bool make_room(const Known& known, int32_t tokens);
  int32_t admit(DraftWish& wish, int32_t room);
  void compute();
  void choose();
  int32_t likeliest(std::span<const float> logits, const DraftWish& wish);

  const std::unique_ptr<Transformer> model_;
  const std::unique_ptr<KvCache> kv_;
  const AlignedMemory logits_memory_;  // [kSequences, vocab]
  const float step_cost_;
  const Stream stream_;
  const int32_t vocab_;  // of both models: outputs may be wider than the vocabulary
  uint64_t calls_ = 0;
  std::vector<Known> known_;  // [kSequences]

  // Reused by each step.
  std::vector<Active> active_;
  std::vector<KvReservation> reservations_;
  std::vector<const KvSlot*> slots_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<SequenceSpan> spans_;
  std::vector<int32_t> rows_;
  std::vector<uint32_t> mask_;  // [mask_words(vocab of the first model)]
};

}  // namespace tessera
