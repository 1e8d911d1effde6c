#include "eval/score/verdict.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "eval/measurement/seeded_random.h"
#include "eval/measurement/statistics.h"

namespace tessera {
namespace {

constexpr double kOneSided = 0.05;  // probability beyond one bound
// Draws of few contexts may all be the same one, whose error is 0.
constexpr double kSmallestError = 0.05;  // as a share of the whole sample's
constexpr double kNormal = 1.64485363;   // the normal distribution's quantile at 1 - kOneSided

// Returns: the quantile of Student's t at 1 - kOneSided, by the Cornish-Fisher expansion. Its error
// is below 1 % from 3 degrees on.
double student_quantile(double degrees) {
  const double z = kNormal;
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * degrees * degrees * degrees);
}

double normal_share_beyond(double x) {
  return std::erfc(x / std::numbers::sqrt2) / 2;
}

// Returns: the probability of at most `count` hits in `of` draws with the probability `p`.
double binomial_share(int64_t count, int64_t of, double p) {
  const auto n = static_cast<double>(of);
  double sum = 0;
  for (int64_t i = 0; i <= count; ++i) {
    const auto k = static_cast<double>(i);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                    k * std::log(p) + (n - k) * std::log1p(-p));
  }
  return sum;
}

// Returns: the share at which at most `count` hits in `of` draws have the probability kOneSided.
double binomial_upper(int64_t count, int64_t of) {
  if (count == of) {
    return 1;
  }
  double low = 0;
  double high = 1;
  for (int halvings = 0; halvings < 50; ++halvings) {
    const double middle = (low + high) / 2;
    (binomial_share(count, of, middle) > kOneSided ? low : high) = middle;
  }
  return high;
}

// The mean of ratios, and its standard error (linearised, as for a ratio of sums).
struct Estimate {
  double mean = 0;
  double error = 0;
};

Estimate estimate(std::span<const Ratio> contexts) {
  Ratio all;
  for (const Ratio& ratio : contexts) {
    all.add(ratio);
  }
  TESSERA_CHECK(all.of > 0, "a mean needs values");
  double squares = 0;
  for (const Ratio& ratio : contexts) {
    const double residual = ratio.sum - all.value() * ratio.of;
    squares += residual * residual;
  }
  const auto n = static_cast<double>(contexts.size());
  return {all.value(), n > 1 ? std::sqrt(squares * n / (n - 1)) / all.of : 0};
}

// Draws as many contexts as there are, with replacement, kResamples times.
template <class OnDrawn>
void resample(std::span<const Ratio> contexts, uint64_t seed, OnDrawn&& on_drawn) {
  SeededRandom random(seed);
  std::vector<Ratio> drawn(contexts.size());
  for (int i = 0; i < kResamples; ++i) {
    for (Ratio& ratio : drawn) {
      ratio = contexts[random.below(contexts.size())];
    }
    on_drawn(estimate(drawn));
  }
}

std::vector<Ratio> counted(std::span<const ContextEvidence> contexts,
                           Ratio ContextEvidence::*evidence) {
  std::vector<Ratio> ratios;
  for (const ContextEvidence& context : contexts) {
    if ((context.*evidence).of > 0) {
      ratios.push_back(context.*evidence);
    }
  }
  return ratios;
}

Bounds bounds_of_lost(std::span<const Ratio> contexts, uint64_t seed) {
  Ratio all;
  for (const Ratio& ratio : contexts) {
    all.add(ratio);
  }
  const Bounds bounds = percentile_bounds(contexts, seed);
  const Bounds exact = binomial_bounds(std::llround(all.sum), std::llround(all.of));
  return {bounds.value, std::min(bounds.low, exact.low), std::max(bounds.high, exact.high)};
}

std::string describe(const Bounds& bounds, double factor, std::string_view unit) {
  return absl::StrFormat("%.2g %s, at most %.3g", factor * bounds.value, std::string(unit),
                         factor * bounds.high);
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view kNames[] = {"lossless", "near", "no", "undecided"};
  return kNames[static_cast<size_t>(verdict)];
}

Bounds percentile_bounds(std::span<const Ratio> contexts, uint64_t seed) {
  const Estimate all = estimate(contexts);
  if (contexts.size() == 1) {
    return {all.mean, all.mean, all.mean};
  }
  std::vector<double> means;
  resample(contexts, seed, [&](const Estimate& drawn) { means.push_back(drawn.mean); });
  const auto n = static_cast<double>(contexts.size());
  const double tail = normal_share_beyond(std::sqrt(n / (n - 1)) * student_quantile(n - 1));
  return {all.mean, std::min(all.mean, quantile(means, tail)),
          std::max(all.mean, quantile(means, 1 - tail))};
}

Bounds studentized_bounds(std::span<const Ratio> contexts, uint64_t seed) {
  const Estimate all = estimate(contexts);
  if (!(all.error > 0)) {
    return {all.mean, all.mean, all.mean};
  }
  std::vector<double> distances;  // of drawn means, in their own standard errors
  resample(contexts, seed, [&](const Estimate& drawn) {
    const double error = std::max(drawn.error, all.error * kSmallestError);
    distances.push_back((drawn.mean - all.mean) / error);
  });
  return {all.mean, all.mean - all.error * quantile(distances, 1 - kOneSided),
          all.mean - all.error * quantile(distances, kOneSided)};
}

Bounds binomial_bounds(int64_t count, int64_t of) {
  TESSERA_CHECK(0 <= count && count <= of && of > 0, "a share of draws");
  return {static_cast<double>(count) / static_cast<double>(of), 1 - binomial_upper(of - count, of),
          binomial_upper(count, of)};
}

Judgement judge(std::span<const ContextEvidence> contexts, uint64_t seed) {
  const std::vector<Ratio> kl = counted(contexts, &ContextEvidence::kl);
  const std::vector<Ratio> lost = counted(contexts, &ContextEvidence::lost);
  Judgement judgement;
  judgement.contexts = std::max(kl.size(), lost.size());
  if (!kl.empty()) {
    judgement.kl = studentized_bounds(kl, seed);
    judgement.reason = absl::StrCat("KL ", describe(*judgement.kl, 1, "nats"));
  }
  if (!lost.empty()) {
    judgement.lost = bounds_of_lost(lost, seed);
    absl::StrAppend(&judgement.reason, kl.empty() ? "" : "; ", "lost answers ",
                    describe(*judgement.lost, 100, "%"));
  }
  if (judgement.contexts == 0) {
    judgement.reason = "the policy has changed nothing that was read";
    return judgement;
  }
  const bool answers = lost.size() >= kFewestContexts;
  if (!answers && kl.size() < kFewestContexts) {
    absl::StrAppend(&judgement.reason, "; ", judgement.contexts, " contexts are too few");
    return judgement;
  }
  const Bounds& deciding = answers ? *judgement.lost : *judgement.kl;
  const double near = answers ? kNearLimits.lost : kNearLimits.kl;
  if (deciding.low >= near) {
    judgement.verdict = Verdict::no;
  } else if (deciding.high < near) {
    const bool lossless = kl.size() >= kFewestContexts && judgement.kl->high < kLosslessLimits.kl &&
                          (!judgement.lost || judgement.lost->high < kLosslessLimits.lost);
    judgement.verdict = lossless ? Verdict::lossless : Verdict::near;
  }
  return judgement;
}

}  // namespace tessera
