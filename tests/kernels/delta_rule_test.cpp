// The recurrence of gated delta networks: against transformers (delta_rule_golden.py), against the
// scalar form, and against itself in other steps.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

using nlohmann::json;

// A network's inputs, with what the op writes.
struct DeltaCase {
  int64_t tokens = 0;
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  bool normalise = false;
  std::vector<float> queries = {}, keys = {}, values = {}, decays = {}, rates = {};
  std::vector<float> states = {};  // [slots, ...]
  std::vector<float> out = {};

  int64_t state_floats() const { return int64_t{value_heads} * key_dim * value_dim; }

  DeltaRuleArgs args(std::span<const StateSpan> sequences) {
    const auto view = [&](std::vector<float>& of) {
      const int64_t cols = std::ssize(of) / tokens;
      return MatrixView<float>{of.data(), tokens, cols, cols};
    };
    out.resize(values.size());
    return {.queries = view(queries),
            .keys = view(keys),
            .values = view(values),
            .decays = view(decays),
            .rates = view(rates),
            .sequences = sequences,
            .states = {states.data(), std::ssize(states) / state_floats(), state_floats(),
                       state_floats()},
            .value_heads = value_heads,
            .key_dim = key_dim,
            .normalise = normalise,
            .out = view(out)};
  }
};

DeltaCase random_case(int64_t tokens, int32_t slots, int32_t key_dim, int32_t value_dim) {
  DeltaCase made{.tokens = tokens,
                 .key_heads = 2,
                 .value_heads = 6,
                 .key_dim = key_dim,
                 .value_dim = value_dim,
                 .normalise = true};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int64_t count, auto change) {
    std::vector<float> all(static_cast<size_t>(count));
    for (float& one : all) one = change(normal(random));
    return all;
  };
  const auto same = [](float x) { return x; };
  made.queries = numbers(tokens * 2 * key_dim, same);
  made.keys = numbers(tokens * 2 * key_dim, same);
  made.values = numbers(tokens * 6 * value_dim, same);
  made.decays = numbers(tokens * 6, [](float x) { return -std::log1p(std::exp(x)) / 8; });
  made.rates = numbers(tokens * 6, [](float x) { return 1 / (1 + std::exp(-x)); });
  made.states = numbers(slots * made.state_floats(), same);
  return made;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, float bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], bound) << "element " << i;
  }
}

class DeltaRule : public testing::TestWithParam<Device> {
 protected:
  void run(DeltaCase& of, const std::vector<StateSpan>& sequences) const {
    GetParam().backend->delta_rule(of.args(sequences), GetParam().stream);
    GetParam().wait(GetParam().stream);
  }
};

TEST_P(DeltaRule, IsTheRecurrenceOfTransformers) {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/golden/delta_rule.json");
  const json golden = json::parse(file);
  for (const bool normalise : {false, true}) {
    const auto floats = [&](const json& list) { return list.get<std::vector<float>>(); };
    DeltaCase of{.key_heads = golden["key_heads"],
                 .value_heads = golden["value_heads"],
                 .key_dim = golden["key_dim"],
                 .value_dim = golden["value_dim"],
                 .normalise = normalise,
                 .queries = floats(golden["queries"]),
                 .keys = floats(golden["keys"]),
                 .values = floats(golden["values"]),
                 .decays = floats(golden["decays"]),
                 .rates = floats(golden["rates"]),
                 .states = floats(golden["state"])};
    of.tokens = std::ssize(of.rates) / of.value_heads;
    const json& expected = golden[normalise ? "normalised" : "plain"];
    run(of, {{.slot = 0, .first_row = 0, .count = static_cast<int32_t>(of.tokens)}});
    // Without the norm, elements grow to some hundreds.
    const float bound = normalise ? 2e-6f : 2e-4f;
    expect_near(of.out, floats(expected["out"]), bound);
    expect_near(of.states, floats(expected["state"]), bound);
  }
}

TEST_P(DeltaRule, HasTheSameBitsForAnyDivisionIntoSteps) {
  constexpr int32_t kTokens = 37;
  const DeltaCase whole = random_case(kTokens, 1, 32, 40);
  DeltaCase at_once = whole;
  run(at_once, {{.slot = 0, .first_row = 0, .count = kTokens}});
  for (const int32_t chunk : {1, 2, 16, 36}) {
    DeltaCase in_steps = whole;
    for (int32_t first = 0; first < kTokens; first += chunk) {
      run(in_steps, {{.slot = 0, .first_row = first, .count = std::min(chunk, kTokens - first)}});
    }
    EXPECT_EQ(in_steps.out, at_once.out) << chunk;
    EXPECT_EQ(in_steps.states, at_once.states) << chunk;
  }
}

// A copy of a state at a border of blocks, and what follows it, is a hit of the prefix cache.
TEST_P(DeltaRule, ContinuesFromACopiedStateWithTheSameBits) {
  constexpr int32_t kTokens = 24;
  const DeltaCase whole = random_case(kTokens, 3, 16, 24);
  DeltaCase miss = whole;
  run(miss, {{.slot = 0, .first_row = 0, .count = kTokens}});
  DeltaCase hit = whole;
  run(hit, {{.slot = 0, .first_row = 0, .count = 16}});
  const auto state = hit.states.begin();
  const std::ptrdiff_t floats = hit.state_floats();
  std::copy(state, state + floats, state + 2 * floats);
  run(hit, {{.slot = 2, .first_row = 16, .count = kTokens - 16}});
  EXPECT_EQ(hit.out, miss.out);
  EXPECT_TRUE(std::equal(state + 2 * floats, state + 3 * floats, miss.states.begin()));
}

TEST_P(DeltaRule, GivesASequenceTheSameBitsAloneAndAmongOthers) {
  const DeltaCase all = random_case(20, 4, 32, 48);
  DeltaCase together = all;
  run(together, {{.slot = 2, .first_row = 0, .count = 5},
                 {.slot = 0, .first_row = 5, .count = 1},
                 {.slot = 3, .first_row = 6, .count = 14}});
  DeltaCase alone = all;
  run(alone, {{.slot = 3, .first_row = 6, .count = 14}});
  const auto floats = static_cast<size_t>(all.state_floats());
  const std::span<const float> states(together.states);
  EXPECT_TRUE(std::ranges::equal(states.subspan(3 * floats, floats),
                                 std::span(alone.states).subspan(3 * floats, floats)));
  EXPECT_TRUE(std::ranges::equal(states.subspan(floats, floats),
                                 std::span(all.states).subspan(floats, floats)))
      << "a slot without tokens";
  const auto width = static_cast<size_t>(all.value_heads * all.value_dim);
  EXPECT_TRUE(std::ranges::equal(std::span(together.out).subspan(6 * width),
                                 std::span(alone.out).subspan(6 * width)));
}

// 128 and 128 are Qwen3-Next's. 19 columns end within a vector.
TEST_P(DeltaRule, IsNearTheScalarOracle) {
  for (const auto& [key_dim, value_dim] : {std::pair{128, 128}, std::pair{24, 19}}) {
    const DeltaCase of = random_case(64, 1, key_dim, value_dim);
    DeltaCase found = of, expected = of;
    const std::vector<StateSpan> sequences{{.slot = 0, .first_row = 0, .count = 64}};
    run(found, sequences);
    cpu_backend(CpuIsa::scalar).delta_rule(expected.args(sequences), GetParam().stream);
    expect_near(found.out, expected.out, 1e-5f);
    expect_near(found.states, expected.states, 1e-5f);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaRule, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
