#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv/kv_format.h"
#include "models/transformer.h"

namespace tessera {

// A format that loses more than this is not used unless it is asked for by name. 0.05 nats are 5 %
// of perplexity, the bound of the verdict *near* (eval/score/verdict.h).
inline constexpr float kLargestDivergence = 0.05f;  // nats

// The loss of one KV format on one checkpoint.
struct FormatCheck {
  KvFormat format;
  float divergence = 0;  // mean KL(f16 || format) of the next token's distributions, in nats

  bool holds() const { return divergence <= kLargestDivergence; }
  bool operator==(const FormatCheck&) const = default;
};

// Returns: the check of a format; null if it was not measured.
const FormatCheck* find_check(std::span<const FormatCheck> checks, KvFormat format);

// Returns: true for the formats that the others are measured against, f16 and f32.
constexpr bool is_exact(KvFormat format) {
  return format == kKvF16 || format == kKvF32;
}

// Returns: true if the format was measured and holds, or is exact.
bool holds(std::span<const FormatCheck> checks, KvFormat format);

// Tokens of a check's text that are computed, and the first position that counts. Earlier positions
// read few tokens in the format. Every kCheckedEvery-th position counts, so the distributions of
// the reference stay small.
inline constexpr int32_t kCheckTokens = 384;
inline constexpr int32_t kFirstChecked = 160;
inline constexpr int32_t kCheckedEvery = 3;

// Measures formats on a checkpoint: computes one text in f16, and again in each format.
class FormatMeasurement {
 public:
  // text: at least kFirstChecked + 1 token ids; kCheckTokens are used
  // step_tokens: of one step, at most the transformer's
  FormatMeasurement(std::vector<int32_t> text, std::shared_ptr<Transformer> model,
                    int32_t step_tokens, const Backend& backend, Stream stream);

  // Returns: the loss of a format. The first call computes the reference too.
  // Errors: those of Engine::create; DeadlineExceeded after `deadline`.
  using Deadline = std::chrono::steady_clock::time_point;
  absl::StatusOr<FormatCheck> measure(KvFormat format, Deadline deadline);

 private:
  // Computes the text in a format. visit(i, logits): of the i-th position that counts.
  template <class Visit>
  absl::Status run(KvFormat format, Deadline deadline, Visit&& visit);

  const std::vector<int32_t> text_;
  const std::shared_ptr<Transformer> model_;
  const int32_t step_tokens_;
  const Backend& backend_;
  const Stream stream_;
  std::vector<float> reference_;  // [positions that count, vocab]; empty before the first call
};

}  // namespace tessera
