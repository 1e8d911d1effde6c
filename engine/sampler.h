#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "models/aligned_memory.h"

namespace tessera {

// What the next token of a sequence is chosen by.
struct Choice {
  const SamplingParams& params;
  std::span<const int32_t> prompt;     // what the sequence started with
  std::span<const int32_t> generated;  // and what was chosen since
  std::span<const int32_t> stop_ids;   // not chosen before params.min_tokens
  std::optional<int32_t> forced = {};  // taken instead of a choice
};

struct Sampled {
  int32_t token = 0;
  TokenLogprobs logprobs;  // only with params.top_logprobs; valid until the next call
};

// Chooses sequences' next tokens, by the backend's op `sample`; kernels/sampling.h says how. A
// token depends on its logits and its Choice alone: randomness is a function of the seed and the
// number of tokens generated, so a sequence that is preempted and computed anew goes on as if
// nothing had happened.
//
// Logits stay in the backend's memory. What comes back of a slice of rows is one copy: what was
// chosen, and behind it the logits of the slice's first rows, where somebody wants to see them.
// Allocates only when it is made; one thread uses it.
class Sampler {
 public:
  // For slices of at most `rows` rows. Errors: ResourceExhausted; InvalidArgument for a vocabulary
  // of more than kMaxSampledVocab tokens.
  static absl::StatusOr<Sampler> create(int32_t vocab, int32_t rows, const Backend& backend,
                                        Stream stream);

  // Begins a slice. Where its logits are to be: [rows, vocab], in the backend's memory.
  MatrixView<float> begin(int64_t rows);
  // Chooses by one row of the slice's logits, which are there; no row twice.
  // Requires: choice.params passed check_sampling.
  void add(int32_t row, const Choice& choice);
  // Waits for what was added, and for the logits of the slice's first `seen` rows.
  void finish(int64_t seen);

  // The slice's choices in the order in which they were added. With top_logprobs > 0 its row must
  // be among those seen. Errors: Internal, when a logit is not finite; FailedPrecondition, when
  // min_tokens and logit_bias leave no token to choose.
  absl::StatusOr<Sampled> chosen(size_t index);
  std::span<const float> seen(int64_t row) const { return host_logits_.row(row); }

  // The log probabilities of `token` and of the `top` likeliest ones, by the model's own logits
  // after `position`; valid until the next call of either. Errors: Internal, as above.
  // logits: [vocab]
  absl::StatusOr<TokenLogprobs> logprobs(std::span<const float> logits, int32_t position,
                                         int32_t token, int32_t top);

  // Whether chosen() needs the row's logits.
  static bool sees(const SamplingParams& params) { return params.top_logprobs.value_or(0) > 0; }

 private:
  struct Added {
    int32_t row = 0;
    size_t tokens = 0;  // that the sequence had
    std::optional<int32_t> top_logprobs;
  };
  struct Views {  // of one piece of memory each
    std::span<SampledToken> sampled;
    MatrixView<float> logits;
    std::span<std::byte> scratch;
  };
  Sampler(int32_t vocab, int32_t rows, const Backend& backend, Stream stream);
  Views cut(MemoryCutter& cutter) const;

  void add_changes(const Choice& choice);
  LogitChange& change_of(int32_t token);
  void sample_added();
  TokenLogprobs report(std::span<const float> logits, int32_t chosen, int32_t top);

  const Backend* backend_;
  Stream stream_;
  SampleLimits limits_;
  AlignedMemory memory_;  // the backend's
  Views views_;
  std::vector<std::byte> host_memory_;  // where memory_ begins, if that is not the host's
  std::span<const SampledToken> host_sampled_;
  MatrixView<const float> host_logits_;

  std::vector<SampleRow> rows_;       // that are added and not sampled yet
  std::vector<LogitChange> changes_;  // theirs
  std::vector<Added> added_;          // all of the slice
  int32_t row_ = 0;                   // that is being added
  std::vector<int32_t> places_;       // [vocab], of a token's change among the row's, or -1
  std::vector<int32_t> counts_;       // [vocab], zero between calls

  struct Entry {
    float logit = 0;
    int32_t token = 0;
  };
  std::vector<Entry> entries_;     // [vocab]
  std::vector<TokenLogprob> top_;  // [kMaxTopLogprobs]
};

}  // namespace tessera
