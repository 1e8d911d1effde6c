#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "kernels/ops/sampling.h"
#include "tests/engine/row_sampler.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits of the last sample call, after the changes of its row.
std::vector<float> changed;

// The CPU backend, with a sample op that records `changed`.
const Backend& noting_backend() {
  static const Backend backend = [] {
    Backend noting = cpu_backend(CpuIsa::scalar);
    noting.sample = [](const SampleArgs& args, Stream stream) {
      changed.assign(args.logits.row(0).begin(), args.logits.row(0).end());
      for (const LogitChange& change : args.changes) {
        float& logit = changed[static_cast<size_t>(change.token)];
        logit = change.apply(logit);
      }
      cpu_backend(CpuIsa::scalar).sample(args, stream);
    };
    return noting;
  }();
  return backend;
}

RowSampler sampler_of(size_t vocab) {
  return RowSampler(static_cast<int32_t>(vocab), noting_backend());
}

// All arguments of sample(), so that a test can change one of them.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> generated = {};
  std::vector<int32_t> stop_ids = {};

  absl::StatusOr<Sampled> sample(RowSampler& sampler) const {
    return sampler.sample(logits, {params, prompt, generated, stop_ids});
  }
  int32_t token() const {
    RowSampler sampler = sampler_of(logits.size());
    return sample(sampler).value().token;
  }
};

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

// Returns: the distribution that the parameters define, computed by sorting all logits.
std::vector<double> reference(const std::vector<float>& logits, const SamplingParams& params) {
  const double best = *std::max_element(logits.begin(), logits.end());
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](size_t i) { return std::exp((logits[i] - best) / params.temperature); };
  std::erase_if(order, [&](size_t i) { return weight(i) < params.min_p; });
  if (params.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  }
  double total = 0;
  for (const size_t i : order) {
    total += weight(i);
  }
  std::vector<double> probabilities(logits.size());
  double kept = 0;
  for (const size_t i : order) {
    if (kept >= params.top_p * total) {
      break;
    }
    probabilities[i] = weight(i);
    kept += weight(i);
  }
  for (double& probability : probabilities) {
    probability /= kept;
  }
  return probabilities;
}

// Draws many tokens by varying the seed or the position, and compares with the distribution.
void expect_distribution(Case sampled, bool vary_seed) {
  constexpr int32_t kDraws = 20'000;
  const std::vector<double> expected = reference(sampled.logits, sampled.params);
  RowSampler sampler = sampler_of(sampled.logits.size());
  std::vector<double> counts(sampled.logits.size());
  for (int32_t i = 0; i < kDraws; ++i) {
    if (vary_seed) {
      sampled.params.seed = static_cast<uint64_t>(i);
    } else {
      sampled.generated.push_back(0);
    }
    ++counts[static_cast<size_t>(sampled.sample(sampler).value().token)];
  }
  double chi_square = 0;
  double freedom = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is cut off";
      continue;
    }
    const double mean = expected[i] * kDraws;
    chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++freedom;
  }
  if (freedom == 0) {
    return;
  }
  // Wilson and Hilferty's approximation of the quantile at one in a million.
  const double spread = 2 / (9 * freedom);
  EXPECT_LT(chi_square, freedom * std::pow(1 - spread + 4.75 * std::sqrt(spread), 3));
}

TEST(Sampler, TakesTheLikeliestWithoutTemperature) {
  EXPECT_EQ((Case{{0.1f, 3.0f, -2.0f, 2.9f}, greedy()}.token()), 1);
}

TEST(Sampler, BreaksTiesByTheLowestId) {
  EXPECT_EQ((Case{{1, 5, 5, 5}, greedy()}.token()), 1);
  SamplingParams params;
  params.top_k = 2;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    params.seed = seed;
    EXPECT_LT((Case{{7, 7, 7, 7}, params}.token()), 2);
  }
}

TEST(Sampler, DrawsFromTheSoftmaxForAnySeed) {
  expect_distribution({{1, 2, 0, -1, 0.5f, 1.5f, -3, 2}, {}}, true);
}

TEST(Sampler, DrawsFromTheSoftmaxAlongASequence) {
  expect_distribution({{1, 2, 0, -1, 0.5f, 1.5f, -3, 2}, {}}, false);
}

TEST(Sampler, CutsOffAsAFullSortWould) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    Case drawn;
    drawn.logits.resize(static_cast<size_t>(pick(1, 60)));
    for (float& logit : drawn.logits) {
      logit = static_cast<float>(pick(-8, 8)) * 0.25f;  // many ties
    }
    drawn.params.temperature = static_cast<float>(pick(2, 12)) * 0.25f;
    drawn.params.top_k = pick(0, 1) * pick(1, 70);
    drawn.params.top_p = pick(0, 1) == 0 ? 1.0f : static_cast<float>(pick(1, 99)) * 0.01f + 0.0037f;
    drawn.params.min_p = pick(0, 2) == 0 ? 0.0513f : 0.0f;
    expect_distribution(drawn, pick(0, 1) == 0);
  }
}

TEST(Sampler, TopKOfOneIsGreedyAndOfTheVocabularyIsAll) {
  const std::vector<float> logits = {0, 0.001f, 0.0005f};
  SamplingParams params;
  params.temperature = 100;
  params.top_k = 1;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    EXPECT_EQ((Case{logits, params}.token()), 1);
  }
  for (const int32_t all : {0, 3, 1000}) {
    params.top_k = all;
    expect_distribution({logits, params}, true);
  }
}

TEST(Sampler, TopPKeepsTheTokenThatCrossesIt) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  const auto tokens = [&](float top_p) {
    std::vector<bool> seen(3);
    SamplingParams params;
    params.top_p = top_p;
    for (params.seed = 0; params.seed < 200; ++params.seed) {
      seen[static_cast<size_t>(Case{logits, params}.token())] = true;
    }
    return seen;
  };
  EXPECT_THAT(tokens(1e-9f), ElementsAre(false, true, false));
  EXPECT_THAT(tokens(0.49f), ElementsAre(false, true, false));
  EXPECT_THAT(tokens(0.51f), ElementsAre(false, true, true));
  EXPECT_THAT(tokens(0.79f), ElementsAre(false, true, true));
  EXPECT_THAT(tokens(0.81f), ElementsAre(true, true, true));
  EXPECT_THAT(tokens(1.0f), ElementsAre(true, true, true));
}

TEST(Sampler, DependsOnNothingButItsArguments) {
  Case first{{1, 2, 3, 2, 1}, {}, {0, 1}, {2, 2}};
  first.params.seed = 77;
  Case other{{5, 1, 1, 1, 1}, {}, {3}, {4, 4, 4}};
  other.params.presence_penalty = 1;
  other.params.repetition_penalty = 2;
  other.params.top_logprobs = 3;
  RowSampler sampler = sampler_of(5);
  const int32_t alone = first.sample(sampler).value().token;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(other.sample(sampler).ok());
    EXPECT_EQ(first.sample(sampler).value().token, alone);
  }
}

TEST(Sampler, FailsOnLogitsThatAreNotNumbers) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    Case broken{{0, 1, bad, 1}, {}};
    RowSampler sampler = sampler_of(4);
    const auto sampled = broken.sample(sampler);
    EXPECT_EQ(sampled.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(sampled.status().message()), HasSubstr("token 2"));
    broken.logits[2] = 0;
    EXPECT_TRUE(broken.sample(sampler).ok());
  }
}

TEST(Sampler, DrawsAtExtremeTemperaturesAndLogits) {
  for (const float temperature : {1e-38f, 1e-6f, 100.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    Case extreme{{-3e38f, 3e38f, 0}, params};
    EXPECT_EQ(extreme.token(), 1);
  }
}

TEST(Sampler, MinPKeepsAFractionOfTheLikeliest) {
  SamplingParams params;
  params.min_p = 0.5f;
  const std::vector<float> logits = {0, std::log(0.6f), std::log(0.4f), std::log(0.1f)};
  expect_distribution({logits, params}, true);
  params.min_p = 1;
  for (params.seed = 0; params.seed < 50; ++params.seed) {
    EXPECT_EQ((Case{logits, params}.token()), 0);
  }
}

TEST(Sampler, RepetitionPenaltyReachesPromptAndGeneratedOnce) {
  Case penalized{{4, -4, 4, -4, 4}, greedy(), {0, 1, 0}, {0, 2}};
  penalized.params.repetition_penalty = 2;
  EXPECT_EQ(penalized.token(), 4);
  EXPECT_THAT(changed, ElementsAre(2, -8, 2, -4, 4));
}

TEST(Sampler, PresenceAndFrequencyPenaltiesCountGeneratedTokensOnly) {
  Case penalized{{4, 4, 4, 4}, greedy(), {3, 3}, {0, 1, 0, 0}};
  penalized.params.presence_penalty = 0.5f;
  penalized.params.frequency_penalty = 0.25f;
  EXPECT_EQ(penalized.token(), 2);
  EXPECT_THAT(changed, ElementsAre(4 - 0.5f - 0.75f, 4 - 0.5f - 0.25f, 4, 4));
}

TEST(Sampler, AddsLogitBias) {
  Case biased{{4, 4, 4}, greedy()};
  biased.params.logit_bias = {{0, -100}, {2, 0.5f}};
  EXPECT_EQ(biased.token(), 2);
  EXPECT_THAT(changed, ElementsAre(-96, 4, 4.5f));
}

TEST(Sampler, ChoosesAmongAllowedTokensOnly) {
  Case one{{1, 2, 0, 1.5f}, greedy()};
  one.params.allowed_token_ids = {3, 2};
  EXPECT_EQ(one.token(), 3);
  RowSampler sampler = sampler_of(4);
  const uint32_t mask[] = {0b0111};  // of a grammar
  const auto both = sampler.sample(one.logits, {.params = one.params,
                                                .prompt = {},
                                                .generated = {},
                                                .stop_ids = {},
                                                .forced = {},
                                                .mask = mask});
  EXPECT_EQ(both.value().token, 2);
  one.params.logit_bias = {{2, -kInfinity}, {3, -kInfinity}};
  EXPECT_THAT(std::string(one.sample(sampler).status().message()), HasSubstr("allowed_token_ids"));
}

TEST(Sampler, ForbidsTheLastTokenOfABadWord) {
  Case one{{1, 2, 0, 1.5f}, greedy()};
  one.params.bad_words = {{0, 3, 1}, {2}};
  const auto after = [&](std::vector<int32_t> generated) {
    one.generated = std::move(generated);
    return one.token();
  };
  EXPECT_EQ(after({}), 1);
  EXPECT_EQ(after({3}), 1);
  EXPECT_EQ(after({0, 3}), 3);
  EXPECT_EQ(after({2, 0, 3}), 3);
  EXPECT_EQ(after({0, 3, 0}), 1);
  one.prompt = {0};
  EXPECT_EQ(after({3}), 1) << "a word that began in the prompt is no generated one";
}

// Penalties of DRY by its definition: each earlier place is compared with the end of the text.
std::vector<float> dry_by_definition(const SamplingParams& params, std::vector<int32_t> text,
                                     size_t vocab) {
  if (params.dry_penalty_last_n >= 0 && std::ssize(text) > params.dry_penalty_last_n) {
    text.erase(text.begin(), text.end() - params.dry_penalty_last_n);
  }
  const auto breaks = [&](int32_t token) {
    return !params.dry_sequence_breakers.empty() &&
           allows(params.dry_sequence_breakers.data(), token);
  };
  std::vector<float> penalties(vocab);
  for (size_t next = 1; next < text.size(); ++next) {
    int32_t length = 0;
    while (std::cmp_less(length, next)) {
      const auto back = static_cast<size_t>(length) + 1;
      const int32_t token = text[text.size() - back];
      if (text[next - back] != token || breaks(token)) {
        break;
      }
      ++length;
    }
    if (length >= std::max(params.dry_allowed_length, 1)) {
      float& penalty = penalties[static_cast<size_t>(text[next])];
      penalty = std::max(
          penalty,
          params.dry_multiplier *
              std::pow(params.dry_base, static_cast<float>(length - params.dry_allowed_length)));
    }
  }
  return penalties;
}

TEST(Sampler, DryPenalizesWhatContinuesARepetition) {
  constexpr size_t kVocab = 4;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    Case one{std::vector<float>(kVocab), greedy()};
    one.params.dry_multiplier = 0.5f;
    one.params.dry_allowed_length = pick(0, 4);
    one.params.dry_penalty_last_n = pick(0, 1) == 0 ? -1 : pick(0, 30);
    if (pick(0, 1) == 0) {
      one.params.dry_sequence_breakers = {1u << pick(0, 3)};
    }
    const int32_t most = pick(0, 3);  // few different tokens: long repetitions
    for (int32_t i = pick(0, 40); i > 0; --i) {
      (pick(0, 1) == 0 && one.generated.empty() ? one.prompt : one.generated)
          .push_back(pick(0, most));
    }
    one.token();
    std::vector<int32_t> text = one.prompt;
    text.insert(text.end(), one.generated.begin(), one.generated.end());
    const std::vector<float> penalties = dry_by_definition(one.params, text, kVocab);
    for (size_t i = 0; i < kVocab; ++i) {
      EXPECT_NEAR(-changed[i], penalties[i], 1e-5f * penalties[i]) << "token " << i;
    }
  }
}

TEST(Sampler, DryKeepsLogitsFinite) {
  Case one{{3, 2, 1}, greedy(), std::vector<int32_t>(3000, 0)};
  one.params.dry_multiplier = 100;
  one.params.dry_base = 100;
  EXPECT_EQ(one.token(), 1);
  EXPECT_TRUE(std::isfinite(changed[0])) << changed[0];
}

TEST(Sampler, TypicalPCutsOffTheLikeliestToo) {
  // The mean surprise is 1.08 nats. Those of the tokens are 0.69, 1.39, 1.43 and 4.6.
  Case one{{std::log(0.5f), std::log(0.25f), std::log(0.24f), std::log(0.01f)}, {}};
  const auto tokens = [&](float typical_p) {
    std::set<int32_t> seen;
    one.params.typical_p = typical_p;
    for (one.params.seed = 0; one.params.seed < 60; ++one.params.seed) {
      seen.insert(one.token());
    }
    return seen;
  };
  EXPECT_EQ(tokens(0.2f), (std::set<int32_t>{1}));
  EXPECT_EQ(tokens(0.4f), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(tokens(0.9f), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, HoldsStopIdsBackUntilMinTokens) {
  Case held{{9, 8, 7}, greedy(), {0}, {2}, {0, 1}};
  held.params.min_tokens = 2;
  EXPECT_EQ(held.token(), 2);
  held.generated = {2, 2};
  EXPECT_EQ(held.token(), 0);
}

TEST(Sampler, FailsWhenMinTokensLeavesNothing) {
  Case nothing{{9, 8}, greedy(), {0}, {}, {0, 1}};
  nothing.params.min_tokens = 1;
  RowSampler sampler = sampler_of(2);
  EXPECT_EQ(nothing.sample(sampler).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Sampler, ReportsTheModelsOwnLogProbabilities) {
  Case reported{{std::log(0.2f), std::log(0.5f), std::log(0.3f)}, greedy()};
  reported.params.logit_bias = {{0, 100}};
  reported.params.top_logprobs = 2;
  RowSampler sampler = sampler_of(3);
  const Sampled sampled = reported.sample(sampler).value();
  EXPECT_EQ(sampled.token, 0);
  EXPECT_EQ(sampled.logprobs.chosen.token, 0);
  EXPECT_NEAR(sampled.logprobs.chosen.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(sampled.logprobs.top.size(), 2);
  EXPECT_EQ(sampled.logprobs.top[0].token, 1);
  EXPECT_NEAR(sampled.logprobs.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(sampled.logprobs.top[1].token, 2);
}

TEST(Sampler, RanksTheChosenTokenAmongAll) {
  RowSampler sampler = sampler_of(6);
  SamplingParams params = greedy();
  params.top_logprobs = 1;
  const std::vector<float> logits = {1, 5, 3, 3, -1, 4};
  const int32_t ranks[] = {5, 1, 3, 4, 6, 2};
  for (int32_t token = 0; token < 6; ++token) {
    const auto sampled = sampler.sample(
        logits, {.params = params, .prompt = {}, .generated = {}, .stop_ids = {}, .forced = token});
    EXPECT_EQ(sampled.value().logprobs.rank, ranks[token]) << "token " << token;
  }
}

TEST(Sampler, ReportsNoMoreAlternativesThanThereAreTokens) {
  Case reported{{1, 2}, greedy()};
  reported.params.top_logprobs = kMaxTopLogprobs;
  RowSampler sampler = sampler_of(2);
  EXPECT_EQ(reported.sample(sampler).value().logprobs.top.size(), 2);
}

TEST(SamplingParams, AreRefusedByNameWhenOutOfRange) {
  const auto refusal = [](auto change) {
    SamplingParams params;
    change(params);
    const absl::Status status = check_sampling(params, 10);
    return status.code() == absl::StatusCode::kInvalidArgument ? std::string(status.message())
                                                               : status.ToString();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {-0.1f, nan, kInfinity}) {
    EXPECT_THAT(refusal([&](auto& p) { p.temperature = bad; }), HasSubstr("temperature"));
    EXPECT_THAT(refusal([&](auto& p) { p.min_p = bad; }), HasSubstr("min_p"));
  }
  for (const float bad : {0.0f, -1.0f, 1.01f, nan}) {
    EXPECT_THAT(refusal([&](auto& p) { p.top_p = bad; }), HasSubstr("top_p"));
  }
  for (const float bad : {-2.1f, 2.1f, nan}) {
    EXPECT_THAT(refusal([&](auto& p) { p.presence_penalty = bad; }), HasSubstr("presence"));
    EXPECT_THAT(refusal([&](auto& p) { p.frequency_penalty = bad; }), HasSubstr("frequency"));
  }
  for (const float bad : {0.0f, -1.0f, kInfinity, nan}) {
    EXPECT_THAT(refusal([&](auto& p) { p.repetition_penalty = bad; }), HasSubstr("repetition"));
  }
  EXPECT_THAT(refusal([](auto& p) { p.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(refusal([](auto& p) { p.min_tokens = -1; }), HasSubstr("min_tokens"));
  EXPECT_THAT(refusal([](auto& p) { p.top_logprobs = 21; }), HasSubstr("top_logprobs"));
  EXPECT_THAT(refusal([](auto& p) { p.logit_bias = {{10, 1}}; }), HasSubstr("token 10"));
  EXPECT_THAT(refusal([](auto& p) { p.logit_bias = {{3, kInfinity}}; }), HasSubstr("token 3"));
  EXPECT_THAT(refusal([](auto& p) { p.typical_p = 0; }), HasSubstr("typical_p"));
  EXPECT_THAT(refusal([](auto& p) { p.dry_base = 0.5f; }), HasSubstr("dry_base"));
  EXPECT_THAT(refusal([](auto& p) { p.dry_penalty_last_n = -2; }), HasSubstr("dry_penalty_last_n"));
  EXPECT_THAT(refusal([](auto& p) {
                p.allowed_token_ids = {1, 10};
              }),
              HasSubstr("allowed_token_ids names token 10"));
  EXPECT_THAT(refusal([](auto& p) {
                p.bad_words = {{1}, {2, -1}};
              }),
              HasSubstr("bad_words names token -1"));
  EXPECT_TRUE(check_sampling({}, 10).ok());
  EXPECT_TRUE(check_sampling(greedy(), 10).ok());
}

}  // namespace
}  // namespace tessera
