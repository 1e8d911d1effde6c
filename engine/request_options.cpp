#include "engine/request_options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/ops/sampling.h"

namespace tessera {
namespace {

absl::Status out_of_range(const Option& option, absl::AlphaNum value, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(option.name), " is ", value, ", it must be ", expected));
}

// Keeps the first error of a walk.
class RangeCheck {
 public:
  template <class T>
  void operator()(const Option& option, const T& value) {
    if (status_.ok()) {
      status_ = check(option, value);
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  static absl::Status check(const Option& option, float value) {
    return check_option(option, value);
  }
  static absl::Status check(const Option& option, int32_t value) {
    return check_option(option, value);
  }
  static absl::Status check(const Option& option, const std::optional<int32_t>& value) {
    return value.has_value() ? check_option(option, *value) : absl::OkStatus();
  }
  static absl::Status check(const Option& option, const std::optional<float>& value) {
    return value.has_value() ? check_option(option, *value) : absl::OkStatus();
  }
  template <class Unbounded>
  static absl::Status check(const Option&, const Unbounded&) {
    return absl::OkStatus();
  }

  absl::Status status_;
};

absl::Status check_bias(const SamplingParams& params, int32_t vocab) {
  for (const SamplingParams::Bias& bias : params.logit_bias) {
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

absl::Status check_tokens(std::string_view name, const std::vector<int32_t>& tokens,
                          int32_t vocab) {
  const auto unknown =
      std::find_if(tokens.begin(), tokens.end(), [&](int32_t id) { return id < 0 || id >= vocab; });
  return unknown == tokens.end()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(std::string(name), " names token ", *unknown,
                                                       ", the vocabulary has ", vocab, " tokens"));
}

}  // namespace

std::string OptionRange::numbers() const {
  constexpr OptionRange kAll;
  const std::string low = absl::StrCat("a number ", above ? "above " : "from ", min);
  return max == kAll.max ? low : absl::StrCat(low, " to ", max);
}

std::string OptionRange::integers(int64_t lowest, int64_t highest) const {
  const int64_t low = min <= static_cast<double>(lowest) ? lowest : static_cast<int64_t>(min);
  const int64_t high = max >= static_cast<double>(highest) ? highest : static_cast<int64_t>(max);
  return absl::StrCat("an integer from ", low, " to ", high);
}

absl::Status check_option(const Option& option, float value) {
  return option.range.contains(value) ? absl::OkStatus()
                                      : out_of_range(option, value, option.range.numbers());
}

absl::Status check_option(const Option& option, int32_t value) {
  using Limits = std::numeric_limits<int32_t>;
  return option.range.contains(value)
             ? absl::OkStatus()
             : out_of_range(option, value, option.range.integers(Limits::min(), Limits::max()));
}

absl::Status check_sampling(const SamplingParams& params, int32_t vocab) {
  RangeCheck ranges;
  visit_sampling(ranges, params);
  absl::Status status = ranges.status();
  status.Update(check_bias(params, vocab));
  status.Update(check_tokens("allowed_token_ids", params.allowed_token_ids, vocab));
  for (const std::vector<int32_t>& word : params.bad_words) {
    status.Update(check_tokens("bad_words", word, vocab));
    TESSERA_CHECK(!word.empty(), "a sequence that is forbidden has a token");
  }
  TESSERA_CHECK(params.dry_sequence_breakers.empty() ||
                    std::cmp_equal(params.dry_sequence_breakers.size(), mask_words(vocab)),
                "a mask has a bit for each token");
  return status;
}

}  // namespace tessera
