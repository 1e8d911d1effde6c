#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace tessera {

// The grammar of one sample: which tokens may come next. It knows token ids and masks only. The
// leader alone has one. One thread at a time calls it: the engine thread, or a thread that fills
// masks (StepMasks). Those run in parallel, so the work for a token belongs into fill(). Calls may
// allocate.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the bit of each token that may come next, and clears all others. mask:
  // [mask_words(vocab)], see kernels/ops/sampling.h. After the grammar's end only ends of sequence
  // may come. No bit is set if accept() was given a token that may not come: the request then
  // fails.
  virtual void fill(std::span<uint32_t> mask) = 0;

  // The sample continues with `token`.
  virtual void accept(int32_t token) = 0;

  // The last `count` accepted tokens do not count any more: they were drafted.
  // Requires: all of them might come.
  virtual void take_back(int32_t count) = 0;
};

// A grammar that a request's samples follow. Immutable; any thread.
class TokenGrammar {
 public:
  virtual ~TokenGrammar() = default;

  // Returns: a constraint at the grammar's start; null on ranks other than the leader.
  virtual std::unique_ptr<TokenConstraint> begin() const = 0;
};

}  // namespace tessera
