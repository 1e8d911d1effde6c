#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/dry_penalty.h"
#include "engine/request.h"
#include "models/weights/aligned_memory.h"

namespace tessera {

// Inputs for the choice of a sequence's next token. All memory is the caller's.
struct Choice {
  const SamplingParams& params;
  std::span<const int32_t> prompt;
  std::span<const int32_t> generated;   // tokens chosen so far
  std::span<const int32_t> stop_ids;    // forbidden before params.min_tokens
  std::optional<int32_t> forced = {};   // replaces the choice
  std::span<const uint32_t> mask = {};  // [mask_words(vocab)] tokens to choose from; empty: all
};

struct Sampled {
  int32_t token = 0;
  TokenLogprobs logprobs;  // only with params.top_logprobs; valid until the next call
};

// Chooses the next tokens of sequences with the backend's op `sample` (kernels/ops/sampling.h
// defines the choice). A token depends only on its logits and its Choice. Randomness is a function
// of the seed and the number of generated tokens. So preemption and recompute do not change a
// sequence's tokens.
//
// Rows of logits are processed in slices: begin(), add() for each sampled row, finish(), then
// chosen() and seen(). Logits stay in the backend's memory. For each slice one copy to the host
// contains the sampled tokens and the logits of the first rows, if the host reads these.
// Allocates memory only in create(). Not thread-safe.
class Sampler {
 public:
  // Creates a sampler for slices of at most `rows` rows. The backend must outlive it.
  // Errors: ResourceExhausted if the memory is refused; InvalidArgument for a vocabulary of more
  // than kMaxSampledVocab tokens.
  static absl::StatusOr<Sampler> create(int32_t vocab, int32_t rows, const Backend& backend,
                                        Stream stream);

  // Returns: bytes that create() will allocate in the backend's memory.
  static int64_t bytes_for(int32_t vocab, int32_t rows, const Backend& backend, Stream stream);

  // Begins a slice.
  // Returns: memory for its logits, [rows, vocab], in the backend's memory. The caller fills it
  // before add().
  MatrixView<float> begin(int64_t rows);
  // Chooses a token by one row of the slice's logits.
  // Requires: choice.params passed check_sampling; each row is added at most once.
  void add(int32_t row, const Choice& choice);
  // Waits for the choices, and copies the logits of the slice's first `seen` rows to the host.
  void finish(int64_t seen);

  // Returns: choice number `index` of the slice, in the order of add().
  // Requires: with top_logprobs > 0, the row is among the `seen` rows of finish().
  // Errors: Internal if a logit is not finite; FailedPrecondition if min_tokens, logit_bias,
  // bad_words, allowed_token_ids and the grammar leave no token to choose.
  absl::StatusOr<Sampled> chosen(size_t index);
  std::span<const float> seen(int64_t row) const { return host_logits_.row(row); }

  // Returns: the log probabilities of `token` and of the `top` likeliest tokens, by the model's own
  // logits after `position`. They are valid until the next call of logprobs() or chosen(). logits:
  // [vocab].
  // Errors: Internal if a logit is not finite.
  absl::StatusOr<TokenLogprobs> logprobs(std::span<const float> logits, int32_t position,
                                         int32_t token, int32_t top);

  // Returns: true if chosen() needs the row's logits on the host.
  static bool sees(const SamplingParams& params) { return params.top_logprobs.value_or(0) > 0; }

 private:
  struct Added {
    int32_t row = 0;
    size_t tokens = 0;  // tokens of the sequence, for error texts
    std::optional<int32_t> top_logprobs;
  };
  struct Views {  // parts of one block of memory
    std::span<SampledToken> sampled;
    MatrixView<float> logits;
    std::span<std::byte> scratch;
  };
  Sampler(int32_t vocab, int32_t rows, const Backend& backend, Stream stream);
  Views cut(MemoryCutter& cutter) const;

  void add_changes(const Choice& choice);
  void forbid_words(const Choice& choice);
  void add_mask(const Choice& choice, SampleRow& wanted);
  LogitChange& change_of(int32_t token);
  void sample_added();
  TokenLogprobs report(std::span<const float> logits, int32_t chosen, int32_t top);

  const Backend* backend_;
  Stream stream_;
  SampleLimits limits_;
  AlignedMemory memory_;  // in the backend's memory
  Views views_;
  std::vector<std::byte> host_memory_;  // copy of the front of memory_; empty for a host backend
  std::span<const SampledToken> host_sampled_;
  MatrixView<const float> host_logits_;

  std::vector<SampleRow> rows_;       // added and not yet sampled
  std::vector<LogitChange> changes_;  // of rows_
  std::vector<uint32_t> masks_;       // of rows_
  DryPenalty dry_;
  std::vector<Added> added_;     // all added rows of the slice
  int32_t row_ = 0;              // the row of the current add()
  std::vector<int32_t> places_;  // [vocab], index of a token's change in changes_, or -1
  std::vector<int32_t> counts_;  // [vocab], zero between calls

  struct Entry {
    float logit = 0;
    int32_t token = 0;
  };
  std::vector<Entry> entries_;     // [vocab]
  std::vector<TokenLogprob> top_;  // [kMaxTopLogprobs]
};

}  // namespace tessera
