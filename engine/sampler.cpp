#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Maximum logit changes of one op call. Changes of one row always fit.
constexpr int32_t kChanges = 1 << 16;

// SplitMix64's finalizer: every input bit reaches every output bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Random number from a counter. A generator's state would have to survive preemption.
uint64_t uniform(uint64_t seed, uint64_t index) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return mix(mix(seed + kGolden) + (index + 1) * kGolden);
}

size_t index(int32_t token) {
  return static_cast<size_t>(token);
}

absl::Status not_finite(int64_t token, float logit, size_t tokens) {
  return absl::InternalError(absl::StrCat("the model's logit of token ", token, " is ", logit,
                                          " after ", tokens, " tokens"));
}

}  // namespace

int64_t Sampler::bytes_for(int32_t vocab, int32_t rows, const Backend& backend, Stream stream) {
  MemoryCutter measure;
  Sampler(vocab, rows, backend, stream).cut(measure);
  return measure.used();
}

absl::StatusOr<Sampler> Sampler::create(int32_t vocab, int32_t rows, const Backend& backend,
                                        Stream stream) {
  if (vocab > kMaxSampledVocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the vocabulary has ", vocab, " tokens, sampling is made for at most ", kMaxSampledVocab));
  }
  Sampler sampler(vocab, rows, backend, stream);
  TESSERA_ASSIGN_OR_RETURN(
      sampler.memory_, AlignedMemory::allocate(bytes_for(vocab, rows, backend, stream), backend));
  MemoryCutter cutter(sampler.memory_.data());
  sampler.views_ = sampler.cut(cutter);
  std::byte* seen = sampler.memory_.data();
  if (backend.memory != nullptr) {
    MemoryCutter copied;
    copied.array<SampledToken>(rows);
    copied.matrix<float>(rows, vocab);
    sampler.host_memory_.resize(static_cast<size_t>(copied.used()));
    seen = sampler.host_memory_.data();
  }
  MemoryCutter host(seen);
  sampler.host_sampled_ = host.array<SampledToken>(rows);
  sampler.host_logits_ = host.matrix<float>(rows, vocab);
  return sampler;
}

Sampler::Sampler(int32_t vocab, int32_t rows, const Backend& backend, Stream stream)
    : backend_(&backend),
      stream_(stream),
      limits_{.rows = rows, .vocab = vocab, .changes = std::max(vocab, kChanges), .masks = rows},
      places_(index(vocab), -1),
      counts_(index(vocab)) {
  rows_.reserve(index(rows));
  added_.reserve(index(rows));
  changes_.reserve(index(limits_.changes));
  masks_.reserve(index(rows) * static_cast<size_t>(mask_words(vocab)));
  entries_.reserve(index(vocab));
  top_.reserve(index(kMaxTopLogprobs));
}

// The parts that are copied to the host come first: sampled tokens, then rows of logits in order.
Sampler::Views Sampler::cut(MemoryCutter& cutter) const {
  Views views;
  views.sampled = cutter.array<SampledToken>(limits_.rows);
  views.logits = cutter.matrix<float>(limits_.rows, limits_.vocab);
  views.scratch = cutter.array<std::byte>(backend_->sample_scratch_bytes(limits_, stream_));
  return views;
}

MatrixView<float> Sampler::begin(int64_t rows) {
  TESSERA_CHECK(rows <= limits_.rows, "more rows than a slice has");
  added_.clear();
  return views_.logits.first_rows(rows);
}

void Sampler::add(int32_t row, const Choice& choice) {
  const SamplingParams& params = choice.params;
  const size_t max_changes = std::min(
      counts_.size(), choice.stop_ids.size() + params.logit_bias.size() + params.bad_words.size() +
                          choice.prompt.size() + choice.generated.size());
  if (changes_.size() + max_changes > changes_.capacity()) {
    sample_added();
  }
  row_ = row;
  SampleRow wanted{.row = row,
                   .forced = choice.forced.value_or(-1),
                   .temperature = params.temperature,
                   .top_p = params.top_p,
                   .top_k = params.top_k,
                   .typical_p = params.typical_p,
                   .first_change = static_cast<int32_t>(changes_.size()),
                   .draw = uniform(params.seed, choice.generated.size()),
                   .wants_logprob = params.top_logprobs.has_value()};
  if (params.min_p > 0) {
    wanted.min_logit = params.temperature * std::log(params.min_p);
  }
  if (!choice.forced.has_value()) {
    add_changes(choice);
  }
  for (size_t i = index(wanted.first_change); i < changes_.size(); ++i) {
    places_[index(changes_[i].token)] = -1;
    ++wanted.changes;
  }
  if (!choice.mask.empty() || !params.allowed_token_ids.empty()) {
    add_mask(choice, wanted);
  }
  rows_.push_back(wanted);
  added_.push_back({row, choice.prompt.size() + choice.generated.size(), params.top_logprobs});
}

// Adds the tokens that the grammar and allowed_token_ids both allow.
void Sampler::add_mask(const Choice& choice, SampleRow& wanted) {
  const auto words = static_cast<size_t>(mask_words(limits_.vocab));
  TESSERA_CHECK(choice.mask.empty() || choice.mask.size() == words,
                "a mask has a bit for each token");
  const size_t first = masks_.size();
  wanted.mask = static_cast<int32_t>(first / words);
  const std::vector<int32_t>& allowed = choice.params.allowed_token_ids;
  if (allowed.empty()) {
    masks_.insert(masks_.end(), choice.mask.begin(), choice.mask.end());
    return;
  }
  masks_.resize(first + words);
  const std::span<uint32_t> mask = std::span(masks_).subspan(first);
  for (const int32_t token : allowed) {
    mask[index(token) / 32] |= uint32_t{1} << (token % 32);
  }
  for (size_t i = 0; i < choice.mask.size(); ++i) {
    mask[i] &= choice.mask[i];
  }
}

// Forbids the last token of each of bad_words whose other tokens were just generated.
void Sampler::forbid_words(const Choice& choice) {
  for (const std::vector<int32_t>& word : choice.params.bad_words) {
    const std::span<const int32_t> before = std::span(word).first(word.size() - 1);
    if (before.size() <= choice.generated.size() &&
        std::equal(before.begin(), before.end(), choice.generated.last(before.size()).begin())) {
      change_of(word.back()).bias = -std::numeric_limits<float>::infinity();
    }
  }
}

// Adds one change for each token, with all its effects merged.
void Sampler::add_changes(const Choice& choice) {
  const SamplingParams& params = choice.params;
  if (std::ssize(choice.generated) < params.min_tokens) {
    for (const int32_t token : choice.stop_ids) {
      change_of(token).bias = -std::numeric_limits<float>::infinity();
    }
  }
  forbid_words(choice);
  for (const SamplingParams::Bias& bias : params.logit_bias) {
    change_of(bias.token).bias += bias.value;
  }
  if (params.repetition_penalty != 1) {
    for (const std::span<const int32_t> tokens : {choice.prompt, choice.generated}) {
      for (const int32_t token : tokens) {
        change_of(token).repetition = params.repetition_penalty;
      }
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const int32_t token : choice.generated) {
      ++counts_[index(token)];
    }
    for (const int32_t token : choice.generated) {
      const int32_t times = std::exchange(counts_[index(token)], 0);
      if (times > 0) {
        change_of(token).penalty =
            params.presence_penalty + params.frequency_penalty * static_cast<float>(times);
      }
    }
  }
  if (params.dry_multiplier > 0) {
    dry_.each(params, choice.prompt, choice.generated, counts_,
              [this](int32_t token, float penalty) { change_of(token).penalty += penalty; });
  }
}

LogitChange& Sampler::change_of(int32_t token) {
  int32_t& place = places_[index(token)];
  if (place < 0) {
    place = static_cast<int32_t>(changes_.size());
    changes_.push_back({.row = row_, .token = token});
  }
  return changes_[index(place)];
}

// Samples the rows that were added since the last call.
void Sampler::sample_added() {
  if (!rows_.empty()) {
    backend_->sample({.logits = views_.logits,
                      .rows = rows_,
                      .changes = changes_,
                      .masks = masks_,
                      .sampled = views_.sampled.subspan(added_.size() - rows_.size(), rows_.size()),
                      .scratch = views_.scratch},
                     stream_);
  }
  rows_.clear();
  changes_.clear();
  masks_.clear();
}

void Sampler::finish(int64_t seen) {
  sample_added();
  if (backend_->memory == nullptr) {
    return;
  }
  const MatrixView<float>& logits = views_.logits;
  const int64_t sampled_bytes = std::ssize(added_) * int64_t{sizeof(SampledToken)};
  const int64_t bytes =
      seen == 0
          ? sampled_bytes
          : reinterpret_cast<const std::byte*>(logits.data + seen * logits.stride) - memory_.data();
  if (bytes > 0) {
    backend_->memory->download(host_memory_.data(), memory_.data(), bytes, stream_);
  }
}

absl::StatusOr<Sampled> Sampler::chosen(size_t at) {
  const SampledToken& sampled = host_sampled_[at];
  const Added& added = added_[at];
  switch (sampled.status) {
    case SampleStatus::chosen:
      break;
    case SampleStatus::not_finite:
      return not_finite(sampled.token, sampled.logit, added.tokens);
    case SampleStatus::none_left:
      return absl::FailedPreconditionError(
          "min_tokens, bad_words, logit_bias, allowed_token_ids and the grammar leave no token "
          "to choose");
  }
  Sampled next{.token = sampled.token, .logprobs = {}};
  if (added.top_logprobs.value_or(0) > 0) {
    next.logprobs = report(seen(added.row), sampled.token, *added.top_logprobs);
  } else if (added.top_logprobs.has_value()) {
    next.logprobs.chosen = {sampled.token, static_cast<float>(log_probability(sampled))};
  }
  return next;
}

absl::StatusOr<TokenLogprobs> Sampler::logprobs(std::span<const float> logits, int32_t position,
                                                int32_t token, int32_t top) {
  TESSERA_CHECK(logits.size() == counts_.size(), "a row of logits has the vocabulary's size");
  const auto broken = std::find_if_not(logits.begin(), logits.end(), is_finite);
  if (broken != logits.end()) {
    return not_finite(broken - logits.begin(), *broken, index(position) + 1);
  }
  return report(logits, token, top);
}

TokenLogprobs Sampler::report(std::span<const float> logits, int32_t chosen, int32_t top) {
  const float max_logit = *std::max_element(logits.begin(), logits.end());
  SampledToken sampled{.max_logit = max_logit};
  for (const float logit : logits) {
    sampled.weight += weight_of(logit, max_logit, 1);
  }
  const auto logprob = [&](int32_t token) {
    sampled.logit = logits[index(token)];
    return TokenLogprob{token, static_cast<float>(log_probability(sampled))};
  };

  entries_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    entries_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  const ptrdiff_t wanted = std::min<ptrdiff_t>(top, std::ssize(entries_));
  std::partial_sort(entries_.begin(), entries_.begin() + wanted, entries_.end(),
                    [](Entry a, Entry b) {
                      return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
                    });
  top_.clear();
  for (ptrdiff_t i = 0; i < wanted; ++i) {
    top_.push_back(logprob(entries_[static_cast<size_t>(i)].token));
  }
  const float own = logits[index(chosen)];
  int32_t rank = 1;
  for (size_t i = 0; i < logits.size(); ++i) {
    rank += logits[i] > own || (logits[i] == own && i < index(chosen)) ? 1 : 0;
  }
  return {logprob(chosen), top_, rank};
}

}  // namespace tessera
