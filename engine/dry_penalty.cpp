#include "engine/dry_penalty.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/sampling.h"

namespace tessera {
namespace {

// The last tokens of prompt and completion, from the end backwards.
class Backwards {
 public:
  Backwards(std::span<const int32_t> prompt, std::span<const int32_t> generated)
      : prompt_(prompt), generated_(generated) {}
  int32_t operator[](int32_t distance) const {
    const auto at = static_cast<size_t>(distance);
    return at < generated_.size() ? generated_[generated_.size() - 1 - at]
                                  : prompt_[prompt_.size() - 1 - (at - generated_.size())];
  }

 private:
  std::span<const int32_t> prompt_;
  std::span<const int32_t> generated_;
};

// Finds for each distance how many tokens before it equal the last tokens (Gusfield's Z algorithm).
void match(const Backwards& text, std::span<int32_t> lengths) {
  const auto count = static_cast<int32_t>(lengths.size());
  int32_t begin = 0;  // the match that reaches farthest
  int32_t end = 0;
  for (int32_t at = 1; at < count; ++at) {
    int32_t length = 0;
    if (at < end) {
      length = std::min(lengths[static_cast<size_t>(at - begin)], end - at);
    }
    while (at + length < count && text[length] == text[at + length]) {
      ++length;
    }
    lengths[static_cast<size_t>(at)] = length;
    if (at + length > end) {
      begin = at;
      end = at + length;
    }
  }
}

float penalty_of(const SamplingParams& params, int32_t length) {
  constexpr double kMost = 1e30;  // a logit stays finite
  const double power = std::pow(double{params.dry_base}, length - params.dry_allowed_length);
  return static_cast<float>(std::min(params.dry_multiplier * power, kMost));
}

}  // namespace

void DryPenalty::each(const SamplingParams& params, std::span<const int32_t> prompt,
                      std::span<const int32_t> generated, std::span<int32_t> counts,
                      const Penalize& penalize) {
  const int32_t most = params.dry_penalty_last_n < 0 ? kMaxDryTokens : params.dry_penalty_last_n;
  const auto count =
      static_cast<int32_t>(std::min(prompt.size() + generated.size(), static_cast<size_t>(most)));
  const Backwards text(prompt, generated);
  const uint32_t* breakers =
      params.dry_sequence_breakers.empty() ? nullptr : params.dry_sequence_breakers.data();
  int32_t longest = 0;  // tokens after the last breaker
  while (longest < count && (breakers == nullptr || !allows(breakers, text[longest]))) {
    ++longest;
  }
  const int32_t shortest = std::max(params.dry_allowed_length, 1);
  if (longest < shortest) {
    return;
  }
  const std::span<int32_t> lengths = std::span(lengths_).first(static_cast<size_t>(count));
  match(text, lengths);
  const auto length_at = [&](int32_t at) {
    return std::min(lengths[static_cast<size_t>(at)], longest);
  };
  for (int32_t at = 1; at < count; ++at) {
    int32_t& of_token = counts[static_cast<size_t>(text[at - 1])];
    of_token = std::max(of_token, length_at(at));
  }
  for (int32_t at = 1; at < count; ++at) {
    int32_t& of_token = counts[static_cast<size_t>(text[at - 1])];
    if (of_token >= shortest) {
      penalize(text[at - 1], penalty_of(params, of_token));
    }
    of_token = 0;
  }
}

}  // namespace tessera
