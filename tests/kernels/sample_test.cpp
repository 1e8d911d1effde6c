// The op `sample` against its definition in double precision, and against the scalar CPU op. It
// must always equal the latter, for any order in which a device adds.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "tests/kernels/device.h"

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint64_t draw_at(double point) {
  return static_cast<uint64_t>(point * 0x1p64);
}

// Rows of logits and their sampling parameters. Changes are added with change().
struct World {
  World(int32_t rows, int32_t tokens)
      : World(std::vector<float>(static_cast<size_t>(rows) * static_cast<size_t>(tokens)), rows) {}
  World(std::vector<float> of, int32_t rows)
      : logits(std::move(of)), vocab(static_cast<int32_t>(logits.size()) / rows) {
    for (int32_t i = 0; i < rows; ++i) {
      wanted.push_back({.row = i});
    }
  }
  std::span<float> row(size_t i) {
    return std::span(logits).subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
  }
  // Adds a change to row `i`. Requires: no later row has changes.
  void change(size_t i, LogitChange change) {
    if (wanted[i].changes++ == 0) {
      wanted[i].first_change = static_cast<int32_t>(changes.size());
    }
    change.row = wanted[i].row;
    changes.push_back(change);
  }
  // Allows row `i` only the tokens for which `allowed` is true.
  template <class Allowed>
  void mask(size_t i, Allowed&& allowed) {
    const auto words = static_cast<size_t>(mask_words(vocab));
    wanted[i].mask = static_cast<int32_t>(masks.size() / words);
    masks.resize(masks.size() + words);
    for (int32_t token = 0; token < vocab; ++token) {
      if (allowed(token)) {
        masks[masks.size() - words + static_cast<size_t>(token) / 32] |= uint32_t{1} << token % 32;
      }
    }
  }

  std::vector<SampledToken> sample(const Backend& backend, Stream stream, void (*wait)(Stream)) {
    std::vector<SampledToken> sampled(wanted.size());
    const SampleLimits limits{static_cast<int32_t>(wanted.size()), vocab,
                              static_cast<int32_t>(changes.size()),
                              static_cast<int32_t>(wanted.size())};
    std::vector<uint64_t> scratch(
        static_cast<size_t>(backend.sample_scratch_bytes(limits, stream)) / sizeof(uint64_t) + 1);
    const auto rows = static_cast<int64_t>(wanted.size());
    const std::vector<float> before = logits;
    backend.sample({.logits = {logits.data(), rows, vocab, vocab},
                    .rows = wanted,
                    .changes = changes,
                    .masks = masks,
                    .sampled = sampled,
                    .scratch = std::as_writable_bytes(std::span(scratch))},
                   stream);
    wait(stream);
    EXPECT_EQ(std::memcmp(logits.data(), before.data(), before.size() * sizeof(float)), 0)
        << "logits are put back";
    return sampled;
  }
  std::vector<SampledToken> sample(const Device& device) {
    return sample(*device.backend, device.stream, device.wait);
  }
  std::vector<SampledToken> sample_by_definition() {
    static ThreadPool pool(1);
    return sample(cpu_backend(CpuIsa::scalar), pool.stream(), [](Stream) {});
  }
  int32_t token(const Device& device) { return sample(device).at(0).token; }

  std::vector<float> logits;
  int32_t vocab;
  std::vector<SampleRow> wanted;
  std::vector<LogitChange> changes;
  std::vector<uint32_t> masks;
};

// Tokens allowed by the definition, by sorting everything in double precision. Rounding may decide
// near the border of the kept tokens and near the draw. So both are moved a little either way.
std::set<int32_t> tokens_by_sorting(std::vector<double> logits, const SampleRow& row) {
  constexpr double kNear = 1e-6;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const double best = logits[order[0]];
  if (row.temperature == 0) {
    return {static_cast<int32_t>(order[0])};
  }
  std::erase_if(order, [&](size_t i) { return logits[i] < best + row.min_logit; });
  if (row.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<size_t>(row.top_k)));
  }
  const auto weight = [&](size_t i) { return std::exp((logits[i] - best) / row.temperature); };
  double total = 0;
  for (const size_t i : order) {
    total += weight(i);
  }
  std::set<int32_t> tokens;
  for (const double share : {row.top_p - kNear, double{row.top_p}, row.top_p + kNear}) {
    std::vector<size_t> kept;
    double sum = 0;
    for (size_t i = 0; i < order.size() && (i == 0 || row.top_p == 1 || sum < share * total); ++i) {
      kept.push_back(order[i]);
      sum += weight(order[i]);
    }
    std::sort(kept.begin(), kept.end());
    for (const double moved : {-kNear, 0.0, kNear}) {
      double point = (static_cast<double>(row.draw) * 0x1p-64 + moved) * sum;
      size_t i = 0;
      while (i + 1 < kept.size() && (point -= weight(kept[i])) >= 0) {
        ++i;
      }
      tokens.insert(static_cast<int32_t>(kept[i]));
    }
  }
  return tokens;
}

class Sample : public testing::TestWithParam<Device> {};

TEST_P(Sample, TakesTheBestOfEqualsTheLowestId) {
  World world({0.5f, 3, -2, 3, 3, 0, -0.0f, 0, -0.0f, -1}, 2);
  world.wanted[0].temperature = 0;
  world.wanted[1].temperature = 0;
  const auto sampled = world.sample(GetParam());
  EXPECT_EQ(sampled[0].token, 1);
  EXPECT_EQ(sampled[1].token, 0) << "zeros of both signs are equal";
}

TEST_P(Sample, TakesTheOnlyToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    World world(std::vector<float>{-7}, 1);
    world.wanted[0] = {
        .temperature = temperature, .top_p = 0.1f, .draw = ~uint64_t{0}, .wants_logprob = true};
    const SampledToken sampled = world.sample(GetParam())[0];
    EXPECT_EQ(sampled.token, 0);
    EXPECT_EQ(sampled.status, SampleStatus::chosen);
    EXPECT_EQ(log_probability(sampled), 0);
  }
}

// For n draws at even distances, a token's count is its share of them, to within one.
TEST_P(Sample, GivesEachTokenItsShareOfTheLine) {
  constexpr int32_t kDraws = 64;
  constexpr int32_t kVocab = 6;
  const float logits[kVocab] = {1, 2, 0, -1, 0.5f, 1.5f};
  double total = 0;
  for (const float logit : logits) {
    total += std::exp(logit / 1.3);
  }
  World world(kDraws, kVocab);
  for (int32_t i = 0; i < kDraws; ++i) {
    std::copy(logits, logits + kVocab, world.row(static_cast<size_t>(i)).begin());
    world.wanted[static_cast<size_t>(i)].temperature = 1.3f;
    world.wanted[static_cast<size_t>(i)].draw = draw_at((i + 0.5) / kDraws);
  }
  double counts[kVocab] = {};
  int32_t last = 0;
  for (const SampledToken& sampled : world.sample(GetParam())) {
    EXPECT_GE(sampled.token, last) << "tokens stand on the line in order of ids";
    last = sampled.token;
    ++counts[sampled.token];
  }
  for (int32_t i = 0; i < kVocab; ++i) {
    EXPECT_NEAR(counts[i], kDraws * std::exp(logits[i] / 1.3) / total, 1) << "token " << i;
  }
}

TEST_P(Sample, KeepsOfEqualsTheLowestIds) {
  for (const double point : {0.01, 0.21, 0.41, 0.61, 0.81, 0.99}) {
    World world(3, 40);  // all logits 0
    for (SampleRow& row : world.wanted) {
      row.draw = draw_at(point);
    }
    world.wanted[0].top_k = 5;
    world.wanted[1].top_p = 0.124f;  // 4.96 of 40
    world.wanted[2].top_k = 20;
    world.wanted[2].top_p = 0.26f;  // 5.2 of 20
    const auto sampled = world.sample(GetParam());
    EXPECT_EQ(sampled[0].token, static_cast<int32_t>(point * 5));
    EXPECT_EQ(sampled[1].token, static_cast<int32_t>(point * 5));
    EXPECT_EQ(sampled[2].token, static_cast<int32_t>(point * 6));
  }
}

TEST_P(Sample, TakesWhatIsLeftWhenAllElseIsForbidden) {
  World world(2, 70);
  for (int32_t token = 0; token < 70; ++token) {
    if (token != 42) {
      world.change(0, {.token = token, .bias = -kInfinity});
    }
  }
  for (int32_t token = 0; token < 70; ++token) {
    world.change(1, {.token = token, .bias = -kInfinity});
  }
  world.wanted[0].temperature = 100;
  world.wanted[0].draw = ~uint64_t{0};
  const auto sampled = world.sample(GetParam());
  EXPECT_EQ(sampled[0].token, 42);
  EXPECT_EQ(sampled[1].status, SampleStatus::none_left);
}

TEST_P(Sample, TakesNoTokenThatItsMaskLeavesOut) {
  World world(5, 70);
  for (size_t i = 0; i < 5; ++i) {
    world.row(i)[3] = 9;
    world.row(i)[68] = 5;
    world.wanted[i].draw = ~uint64_t{0};
  }
  world.mask(0, [](int32_t token) { return token == 42; });
  world.mask(1, [](int32_t token) { return token != 3; });
  world.wanted[1].temperature = 0;
  world.mask(2, [](int32_t) { return false; });
  world.mask(3, [](int32_t token) { return token == 68 || token == 69; });
  world.wanted[3].top_k = 1;
  world.wanted[3].wants_logprob = true;
  world.change(3, {.token = 3, .bias = 50});
  world.wanted[4].temperature = 0;  // without a mask
  const auto sampled = world.sample(GetParam());
  EXPECT_EQ(sampled[0].token, 42);
  EXPECT_EQ(sampled[1].token, 68);
  EXPECT_EQ(sampled[2].status, SampleStatus::none_left);
  EXPECT_EQ(sampled[3].token, 68);
  const double log_sum = std::log(std::exp(9.0) + std::exp(5.0) + 68);
  EXPECT_NEAR(log_probability(sampled[3]), 5 - log_sum, 1e-6) << "by the model's own logits";
  EXPECT_EQ(sampled[4].token, 3);
}

TEST_P(Sample, TakesTheForcedTokenUnderAnyMask) {
  World world(1, 40);
  world.wanted[0].forced = 7;
  world.mask(0, [](int32_t token) { return token == 8; });
  EXPECT_EQ(world.token(GetParam()), 7);
}

TEST_P(Sample, SaysWhichLogitIsNotFinite) {
  World world(4, 1100);
  world.row(0)[1099] = kNan;
  world.row(1)[3] = kInfinity;
  world.row(1)[4] = kNan;
  world.row(2)[0] = -kInfinity;
  world.wanted[2].forced = 5;
  world.change(0, {.token = 1099, .bias = -kInfinity});
  const auto sampled = world.sample(GetParam());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sampled[i].status, SampleStatus::not_finite);
    EXPECT_EQ(sampled[i].token, i == 0 ? 1099 : i == 1 ? 3 : 0);
  }
  EXPECT_TRUE(std::isnan(sampled[0].logit));
  EXPECT_EQ(sampled[1].logit, kInfinity);
  EXPECT_EQ(sampled[3].status, SampleStatus::chosen);
}

TEST_P(Sample, ChangesLogitsBeforeItChoosesAndTellsTheModelsOwn) {
  World world(5, 4);
  for (size_t i = 0; i < 5; ++i) {
    std::ranges::copy(std::vector<float>{1, 4, -4, 3}, world.row(i).begin());
    world.wanted[i].temperature = 0;
    world.wanted[i].wants_logprob = true;
  }
  world.change(0, {.token = 1, .bias = -2});                      // 2
  world.change(1, {.token = 1, .repetition = 2});                 // 2
  world.change(2, {.token = 3, .bias = 2, .penalty = 0.5f});      // 4.5
  world.change(3, {.token = 2, .bias = 12, .repetition = 0.5f});  // 16
  world.change(3, {.token = 1, .bias = -9, .repetition = 2});     // -10
  world.wanted[4].forced = 0;
  world.change(4, {.token = 0, .bias = 3});
  const auto sampled = world.sample(GetParam());
  const int32_t expected[] = {3, 3, 3, 2, 0};
  const double log_sum = std::log(std::exp(1.0) + std::exp(4.0) + std::exp(-4.0) + std::exp(3.0));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sampled[i].token, expected[i]) << "row " << i;
    EXPECT_NEAR(log_probability(sampled[i]),
                world.row(i)[static_cast<size_t>(expected[i])] - log_sum, 1e-6);
  }
}

TEST_P(Sample, TakesATokenThatHasGrownInfinite) {
  World world({1e30f, 3e38f, 2e38f}, 1);
  world.change(0, {.token = 2, .repetition = 1e-3f});
  EXPECT_EQ(world.token(GetParam()), 2);
}

// Random rows of random sizes, with all sampling parameters.
World random_world(std::mt19937_64& random, int32_t rows, int32_t vocab) {
  World world(rows, vocab);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (size_t i = 0; i < world.wanted.size(); ++i) {
    std::normal_distribution<float> normal(0, static_cast<float>(pick(1, 6)));
    const bool ties = pick(0, 2) == 0;
    for (float& logit : world.row(i)) {
      logit = ties ? std::round(normal(random)) * 0.5f : normal(random);
    }
    SampleRow& row = world.wanted[i];
    const float temperatures[] = {0, 0.3f, 0.7f, 1, 1, 1.7f, 100};
    row.temperature = temperatures[pick(0, 6)];
    row.top_p = pick(0, 1) == 0 ? 1 : static_cast<float>(pick(1, 99)) * 0.01f + 0.0037f;
    const int32_t few[] = {0, 0, 1, 40, vocab, 2 * vocab};
    row.top_k = few[pick(0, 5)];
    if (pick(0, 2) == 0) {
      row.min_logit = row.temperature * std::log(0.0513f);
    }
    row.draw = random();
    row.wants_logprob = pick(0, 1) == 0;
    for (int32_t token = pick(0, 3) == 0 ? pick(0, vocab - 1) : vocab; token < vocab;
         token += pick(1, 50)) {
      world.change(i, {.token = token,
                       .bias = pick(0, 9) == 0 ? -kInfinity : static_cast<float>(pick(-2, 2)),
                       .repetition = pick(0, 1) == 0 ? 1.0f : 1.3f,
                       .penalty = static_cast<float>(pick(0, 2)) * 0.4f});
    }
    if (pick(0, 2) == 0) {
      const int32_t share = pick(0, 20);  // sometimes nothing is allowed
      world.mask(i, [&](int32_t) { return pick(0, 19) < share; });
    }
  }
  return world;
}

TEST_P(Sample, ChoosesAsSortingWould) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    World world = random_world(random, 4, 1 + static_cast<int32_t>(random() % 90));
    const auto sampled = world.sample(GetParam());
    for (size_t i = 0; i < sampled.size(); ++i) {
      const SampleRow& row = world.wanted[i];
      std::vector<float> logits(world.row(i).begin(), world.row(i).end());
      for (int32_t c = row.first_change; c < row.first_change + row.changes; ++c) {
        const LogitChange& change = world.changes[static_cast<size_t>(c)];
        logits[static_cast<size_t>(change.token)] =
            change.apply(logits[static_cast<size_t>(change.token)]);
      }
      for (int32_t token = 0; row.mask >= 0 && token < world.vocab; ++token) {
        if (!allows(world.masks.data() + row.mask * mask_words(world.vocab), token)) {
          logits[static_cast<size_t>(token)] = -kInfinity;
        }
      }
      if (*std::ranges::max_element(logits) == -kInfinity) {
        EXPECT_EQ(sampled[i].status, SampleStatus::none_left);
        continue;
      }
      const auto expected = tokens_by_sorting({logits.begin(), logits.end()}, row);
      EXPECT_TRUE(expected.contains(sampled[i].token))
          << "row " << i << ": " << sampled[i].token << " and not " << *expected.begin();
      EXPECT_LE(expected.size(), 3);
    }
  }
}

// Tokens that locally typical sampling keeps: those whose surprise is nearest to the entropy.
std::set<int32_t> typical_tokens(std::span<const float> logits, double temperature, double share) {
  const double best = *std::ranges::max_element(logits);
  std::vector<double> weights;
  for (const float logit : logits) {
    weights.push_back(std::exp((logit - best) / temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double entropy = -std::transform_reduce(
      weights.begin(), weights.end(), 0.0, std::plus<>(),
      [&](double weight) { return weight / total * std::log(weight / total); });
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto distance = [&](size_t i) { return std::abs(std::log(weights[i] / total) + entropy); };
  std::ranges::stable_sort(order, {}, distance);
  std::set<int32_t> kept;
  double sum = 0;
  for (size_t i = 0; i < order.size() && (i == 0 || sum < share * total); ++i) {
    kept.insert(static_cast<int32_t>(order[i]));
    sum += weights[order[i]];
  }
  return kept;
}

TEST_P(Sample, KeepsTheTokensWhoseSurpriseIsTypical) {
  constexpr int32_t kDraws = 64, kVocab = 12;
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  for (const float share : {0.2f, 0.5f, 0.9f}) {
    World world(kDraws, kVocab);
    std::ranges::generate(world.row(0), [&] { return normal(random); });
    for (size_t i = 0; i < kDraws; ++i) {
      std::ranges::copy(world.row(0), world.row(i).begin());
      world.wanted[i].temperature = 1.5f;
      world.wanted[i].typical_p = share;
      world.wanted[i].draw = draw_at((static_cast<double>(i) + 0.5) / kDraws);
    }
    std::set<int32_t> drawn;
    for (const SampledToken& sampled : world.sample(GetParam())) {
      drawn.insert(sampled.token);
    }
    EXPECT_EQ(drawn, typical_tokens(world.row(0), 1.5, share)) << "share " << share;
  }
}

TEST_P(Sample, EqualsTheScalarCpuToTheLastBit) {
  struct Size {
    int32_t vocab;
    int32_t rows;
  };
  for (const Size size : {Size{1, 3}, Size{31, 8}, Size{32, 8}, Size{33, 8}, Size{1000, 8},
                          Size{32000, 4}, Size{128256, 2}}) {
    SCOPED_TRACE("vocabulary " + std::to_string(size.vocab));
    std::mt19937_64 random(static_cast<uint64_t>(size.vocab));
    World world = random_world(random, size.rows, size.vocab);
    for (size_t i = 0; i < world.wanted.size(); i += 2) {
      world.wanted[i].typical_p = static_cast<float>(random() % 98 + 1) * 0.01f;
    }
    const auto expected = world.sample_by_definition();
    const auto sampled = world.sample(GetParam());
    for (size_t i = 0; i < sampled.size(); ++i) {
      EXPECT_EQ(sampled[i].token, expected[i].token) << "row " << i;
      EXPECT_EQ(sampled[i].status, expected[i].status);
      EXPECT_EQ(sampled[i].logit, expected[i].logit);
      EXPECT_EQ(sampled[i].max_logit, expected[i].max_logit);
      EXPECT_EQ(sampled[i].weight, expected[i].weight);
    }
  }
}

// More changes than the device's copy of a plan takes at once.
TEST_P(Sample, TakesAChangeOfEveryToken) {
  World world(1, 100'000);
  world.wanted[0].temperature = 0;
  for (int32_t token = 0; token < world.vocab; ++token) {
    world.change(0, {.token = token, .bias = token == 77'777 ? 1.0f : 0.5f});
  }
  EXPECT_EQ(world.token(GetParam()), 77'777);
}

INSTANTIATE_TEST_SUITE_P(Devices, Sample, testing::ValuesIn(sampling_devices()),
                         [](const auto& device) { return device.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sample);

TEST(Weight, IsTheExponentialToAFifthOfAFloatsLastPlace) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(0, 20);
  EXPECT_EQ(weight_of(3, 3, 0.7f), kWeightOfBest);
  for (int32_t i = 0; i < 20'000; ++i) {
    const float below = uniform(random);
    const double exact = std::exp(-double{below}) * static_cast<double>(kWeightOfBest);
    // The product with log2(e) is rounded, and the exponent is truncated to 25 bits.
    const double bound = exact * (1.2e-8 + 3e-8 + below * 1.3e-7) + 1;
    ASSERT_NEAR(static_cast<double>(weight_of(-below, 0, 1)), exact, bound) << below;
  }
  for (const float logit : {-kInfinity, -3e38f, -50.0f}) {
    EXPECT_EQ(weight_of(logit, 0, 1), 0);
  }
  EXPECT_EQ(weight_of(-3e38f, 3e38f, 1e-38f), 0);
  EXPECT_EQ(weight_of(3e38f, 3e38f, 1e-38f), kWeightOfBest);
}

TEST(Weight, IsTheUpperHalfOfAPointsProduct) {
  std::mt19937_64 random(4);
  for (int32_t i = 0; i < 1000; ++i) {
    const uint64_t draw = random();
    const uint64_t length = random() >> random() % 64;
    __extension__ using Wide = unsigned __int128;
    ASSERT_EQ(point_of(draw, length), static_cast<uint64_t>(Wide{draw} * length >> 64));
  }
}

TEST(LogitKey, OrdersAndTurnsBack) {
  const float ordered[] = {-kInfinity, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 3e38f, kInfinity};
  for (size_t i = 0; i < std::size(ordered); ++i) {
    EXPECT_EQ(logit_of(logit_key(ordered[i])), ordered[i]);
    if (i > 0) {
      EXPECT_LT(logit_key(ordered[i - 1]), logit_key(ordered[i]));
    }
  }
  EXPECT_EQ(logit_key(-0.0f), logit_key(0.0f));
}

}  // namespace
}  // namespace tessera
