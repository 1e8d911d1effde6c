#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "models/status_macros.h"

namespace tessera {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// SplitMix64's finalizer: every input bit reaches every output bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// In [0, 1), from a counter instead of a state that would have to survive preemption.
double uniform(uint64_t seed, uint64_t index) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return static_cast<double>(mix(mix(seed + kGolden) + (index + 1) * kGolden) >> 11) * 0x1p-53;
}

float weight(float logit, float max_logit, float temperature) {
  return std::exp((logit - max_logit) / temperature);
}

bool needs_selection(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
}

size_t index(int32_t token) {
  return static_cast<size_t>(token);
}

absl::Status check_finite(std::span<const float> logits, size_t tokens) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(absl::StrCat("the model's logit of token ", i, " is ", logits[i],
                                              " after ", tokens, " tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Sampler::Sampler(int32_t vocab)
    : weights_(index(vocab)), model_logits_(index(vocab)), counts_(index(vocab)) {
  entries_.reserve(index(vocab));
  top_.reserve(index(kMaxTopLogprobs));
}

absl::StatusOr<Sampled> Sampler::sample(const SampleArgs& args) {
  TESSERA_CHECK(args.logits.size() == weights_.size(), "a row of logits has the vocabulary's size");
  TESSERA_RETURN_IF_ERROR(check_finite(args.logits, args.prompt.size() + args.generated.size()));
  if (args.params.top_logprobs.has_value()) {
    std::copy(args.logits.begin(), args.logits.end(), model_logits_.begin());
  }
  Sampled sampled;
  if (args.forced.has_value()) {
    sampled.token = *args.forced;
  } else {
    TESSERA_ASSIGN_OR_RETURN(sampled.token, choose(args));
  }
  if (args.params.top_logprobs.has_value()) {
    sampled.logprobs = report(model_logits_, sampled.token, *args.params.top_logprobs);
  }
  return sampled;
}

absl::StatusOr<TokenLogprobs> Sampler::logprobs(std::span<const float> logits, int32_t position,
                                                int32_t token, int32_t top) {
  TESSERA_CHECK(logits.size() == weights_.size(), "a row of logits has the vocabulary's size");
  TESSERA_RETURN_IF_ERROR(check_finite(logits, static_cast<size_t>(position) + 1));
  return report(logits, token, top);
}

absl::StatusOr<int32_t> Sampler::choose(const SampleArgs& args) {
  adjust(args);
  Entry best{args.logits[0], 0};
  for (size_t i = 1; i < args.logits.size(); ++i) {
    if (args.logits[i] > best.logit) {
      best = {args.logits[i], static_cast<int32_t>(i)};
    }
  }
  if (best.logit == kMasked) {
    return absl::FailedPreconditionError("min_tokens leaves no token that could be chosen");
  }
  return args.params.temperature == 0 ? best.token : draw(args, best);
}

// The stages that change logits, in vLLM's order.
void Sampler::adjust(const SampleArgs& args) {
  if (std::ssize(args.generated) < args.params.min_tokens) {
    for (const int32_t token : args.stop_ids) {
      args.logits[index(token)] = kMasked;
    }
  }
  for (const SamplingParams::Bias& bias : args.params.logit_bias) {
    args.logits[index(bias.token)] += bias.value;
  }
  penalize(args);
}

void Sampler::penalize(const SampleArgs& args) {
  const SamplingParams& params = args.params;
  if (params.repetition_penalty != 1) {
    for (const std::span<const int32_t> tokens : {args.prompt, args.generated}) {
      for (const int32_t token : tokens) {
        if (counts_[index(token)]++ == 0) {
          float& logit = args.logits[index(token)];
          logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
        }
      }
    }
    for (const std::span<const int32_t> tokens : {args.prompt, args.generated}) {
      for (const int32_t token : tokens) {
        counts_[index(token)] = 0;
      }
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const int32_t token : args.generated) {
      ++counts_[index(token)];
    }
    for (const int32_t token : args.generated) {
      const int32_t times = std::exchange(counts_[index(token)], 0);
      if (times > 0) {
        args.logits[index(token)] -=
            params.presence_penalty + params.frequency_penalty * static_cast<float>(times);
      }
    }
  }
}

// The last entry, from the best on, that min_p, top_k and top_p keep.
Sampler::Entry Sampler::worst_kept(std::span<const float> logits, float max_logit,
                                   const SamplingParams& params) {
  float lowest = params.min_p > 0 ? max_logit + params.temperature * std::log(params.min_p)
                                  : std::numeric_limits<float>::lowest();
  const auto collect = [&] {
    entries_.clear();
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= lowest) {
        entries_.push_back({logits[i], static_cast<int32_t>(i)});
      }
    }
  };
  collect();
  if (params.top_k > 0 && index(params.top_k) < entries_.size()) {
    std::nth_element(entries_.begin(), entries_.begin() + (params.top_k - 1), entries_.end(),
                     better);
    entries_.resize(index(params.top_k));
  }
  if (params.top_p < 1) {
    const double total = mass({0, entries_.size()}, max_logit, params.temperature);
    if (params.top_k == 0) {
      // Entries below this weight cannot be needed: all of them together have at most half of
      // what top_p leaves out. That usually spares nearly the whole vocabulary the selection.
      const double weight = 0.5 * (1.0 - params.top_p) * total / static_cast<double>(logits.size());
      lowest =
          std::max(lowest, max_logit + params.temperature * static_cast<float>(std::log(weight)));
      collect();
    }
    entries_.resize(count_reaching(params.top_p * total, max_logit, params.temperature));
  }
  return *std::max_element(entries_.begin(), entries_.end(), better);
}

double Sampler::mass(Range range, float max_logit, float temperature) const {
  double sum = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    sum += weight(entries_[i].logit, max_logit, temperature);
  }
  return sum;
}

// How many of the best entries together weigh at least `wanted`; those come first afterwards. Each
// round halves what is still undecided.
size_t Sampler::count_reaching(double wanted, float max_logit, float temperature) {
  size_t low = 0;  // the best `low` do not reach it, the best `high` do
  size_t high = entries_.size();
  double low_mass = 0;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const auto place = [this](size_t i) { return entries_.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(place(low), place(middle), place(high), better);
    const double half = mass({low, middle}, max_logit, temperature);
    if (low_mass + half >= wanted) {
      high = middle;
    } else {
      low_mass += half;
      low = middle;
    }
  }
  return high;
}

int32_t Sampler::draw(const SampleArgs& args, Entry best) {
  const SamplingParams& params = args.params;
  const Entry worst = needs_selection(params) ? worst_kept(args.logits, best.logit, params)
                                              : Entry{kMasked, std::numeric_limits<int32_t>::max()};
  double total = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const bool kept = !better(worst, {args.logits[i], static_cast<int32_t>(i)});
    weights_[i] = kept ? weight(args.logits[i], best.logit, params.temperature) : 0.0f;
    total += weights_[i];
  }
  double left = uniform(params.seed, args.generated.size()) * total;
  int32_t chosen = best.token;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0) {
      chosen = static_cast<int32_t>(i);
      left -= weights_[i];
      if (left < 0) {
        break;
      }
    }
  }
  return chosen;
}

TokenLogprobs Sampler::report(std::span<const float> logits, int32_t chosen, int32_t top) {
  const float max_logit = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - max_logit);
  }
  const double log_sum = max_logit + std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  entries_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    entries_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  const ptrdiff_t wanted = std::min<ptrdiff_t>(top, std::ssize(entries_));
  std::partial_sort(entries_.begin(), entries_.begin() + wanted, entries_.end(), better);
  top_.clear();
  for (ptrdiff_t i = 0; i < wanted; ++i) {
    const Entry& entry = entries_[static_cast<size_t>(i)];
    top_.push_back({entry.token, logprob(entry.logit)});
  }
  return {{chosen, logprob(logits[index(chosen)])}, top_};
}

}  // namespace tessera
