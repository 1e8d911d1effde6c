#include "engine/request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// NaN is outside every range.
absl::Status check_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be in [", low, ", ", high, "]"));
}

absl::Status check_count(const char* field, int32_t count) {
  if (count >= 0 && count <= kMaxTopLogprobs) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", count, ", it must be in [0, ", kMaxTopLogprobs, "]"));
}

absl::Status check_bias(const SamplingParams& params, int32_t vocab) {
  for (size_t i = 0; i < params.logit_bias.size(); ++i) {
    const SamplingParams::Bias& bias = params.logit_bias[i];
    if (bias.token < 0 || bias.token >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat("logit_bias names token ", bias.token,
                                                     ", the vocabulary has ", vocab, " tokens"));
    }
    if (!std::isfinite(bias.value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias of token ", bias.token, " is not a finite number"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_sampling(const SamplingParams& params, int32_t vocab) {
  constexpr float kLargestTemperature = 100;  // above it, all tokens are equally likely
  if (!(params.top_p > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_p is ", params.top_p, ", it must be in (0, 1]"));
  }
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty)) {
    return absl::InvalidArgumentError(
        absl::StrCat("repetition_penalty is ", params.repetition_penalty, ", it must be above 0"));
  }
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k is ", params.top_k, ", it must be 0 (all) or more"));
  }
  if (params.min_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_tokens is ", params.min_tokens, ", it must be 0 or more"));
  }
  for (const absl::Status& status :
       {check_range("temperature", params.temperature, 0, kLargestTemperature),
        check_range("top_p", params.top_p, 0, 1), check_range("min_p", params.min_p, 0, 1),
        check_range("presence_penalty", params.presence_penalty, -2, 2),
        check_range("frequency_penalty", params.frequency_penalty, -2, 2),
        check_count("top_logprobs", params.top_logprobs.value_or(0)),
        check_count("prompt_logprobs", params.prompt_logprobs.value_or(0)),
        check_bias(params, vocab)}) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
