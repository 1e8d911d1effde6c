// Whole presets against kvpress on transformers: the tokens of a prompt that the shipped model
// keeps. kept_tokens_golden.py computed the golden file, and says where a preset differs from
// kvpress's defaults.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv/kv_policy_fields.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "nlohmann/json.hpp"
#include "tests/engine/batching_engine_of.h"
#include "tests/engine/recording_sink.h"

namespace tessera {
namespace {

const nlohmann::json& golden() {
  static const nlohmann::json file = [] {
    std::ifstream in(TESSERA_SOURCE_DIR "/tests/golden/kept_tokens.json");
    return nlohmann::json::parse(in);
  }();
  return file;
}

// Returns: whether hex digits mark a token.
bool marks(const std::string& digits, int32_t token) {
  const std::string digit(1, digits.at(static_cast<size_t>(token / 4)));
  return (std::stoi(digit, nullptr, 16) >> (3 - token % 4) & 1) != 0;
}

class KeptTokens : public testing::TestWithParam<const char*> {
 protected:
  // Returns: for each row, whether it still has the prompt's first `tokens` tokens, right after the
  // policy has compressed them.
  std::vector<std::vector<bool>> kept(int32_t tokens) {
    const auto preset = parse_preset(GetParam());
    EXPECT_TRUE(preset.ok()) << preset.status();
    EngineOptions options{.max_step_tokens = 96, .max_sequences = 1, .context = 1280};
    options.kv = *preset;
    ThreadPool threads(2);
    const auto engine =
        batching_engine_of(TESSERA_SOURCE_DIR "/models/checkpoints/tessera-tiny", options, 96,
                           cpu_backend(best_cpu_isa()), threads.stream());
    const auto sink = std::make_shared<RecordingSink>();
    EngineRequest request;
    request.prompt = golden().at("ids").get<std::vector<int32_t>>();
    request.max_tokens = 4;
    request.ignore_eos = true;
    request.sinks = {sink};
    const auto size = static_cast<int32_t>(request.prompt.size());
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
    while (sink->tokens().empty() && engine->step()) {
    }
    const KvPagesView pages = engine->kv().view();
    std::vector<std::vector<bool>> rows;
    for (int64_t row = 0; row < pages.layers * pages.kv_heads; ++row) {
      // Compressed tokens come first, in any order; those behind a section stay whole.
      const int32_t behind = (size - tokens) / kKvGroup * kKvGroup;
      std::vector<bool>& of = rows.emplace_back(static_cast<size_t>(tokens));
      for (int32_t i = 0; i < pages.rows[row].high - behind; ++i) {
        of.at(static_cast<size_t>(pages.token_score_row(row)[i].position)) = true;
      }
    }
    return rows;
  }
};

TEST_P(KeptTokens, AreThoseOfKvpress) {
  const nlohmann::json& rows = golden().at("presets").at(GetParam());
  const auto tokens = static_cast<int32_t>(rows[0].at("kept").get<std::string>().size()) * 4;
  const auto found = kept(tokens);
  ASSERT_EQ(found.size(), rows.size());
  int32_t unsure = 0;
  int32_t sure = 0;
  for (size_t row = 0; row < found.size(); ++row) {
    const auto expected = rows[row].at("kept").get<std::string>();
    const auto near_cut = rows[row].at("unsure").get<std::string>();
    int32_t more = 0;  // tokens kept beyond the expected number
    for (int32_t token = 0; token < tokens; ++token) {
      const bool is_kept = found[row][static_cast<size_t>(token)];
      more += (is_kept ? 1 : 0) - (marks(expected, token) ? 1 : 0);
      if (marks(near_cut, token)) {
        ++unsure;
        continue;
      }
      ++sure;
      EXPECT_EQ(is_kept, marks(expected, token)) << "row " << row << " token " << token;
    }
    EXPECT_LE(std::abs(more), 1) << "row " << row;
  }
  EXPECT_LT(unsure * 20, sure) << "too many tokens are near the cut";
}

INSTANTIATE_TEST_SUITE_P(
    Preset, KeptTokens,
    testing::Values("snapkv", "streaming", "replay-50:scorer=replay:high=f16:low=f16"),
    [](const auto& preset) {
      std::string name = preset.param;
      std::replace_if(
          name.begin(), name.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace tessera
