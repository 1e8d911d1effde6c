#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/models/model_runner.h"
#include "tests/models/temporary_directory.h"
#include "tests/models/tiny_models.h"

// Logits of the tiny models, computed by transformers (architectures_golden.py).
namespace tessera {

// Returns: an object with an entry for each model. TESSERA_ARCHITECTURES_GOLDEN=FILE names another
// file than the one in tests/golden (live_architectures.sh).
inline nlohmann::json golden_architectures() {
  const char* live = std::getenv("TESSERA_ARCHITECTURES_GOLDEN");
  const std::filesystem::path path =
      live != nullptr ? live : TESSERA_SOURCE_DIR "/tests/golden/architectures.json";
  return nlohmann::json::parse(read_file(path));
}

// Compares the logits of a model in `directory` with its entry, and the greedy tokens where the
// entry has some.
inline void expect_golden(const nlohmann::json& entry, const std::filesystem::path& directory,
                          ModelRunner::Options options) {
  const auto ids = entry.at("ids").get<std::vector<int32_t>>();
  const bool greedy = entry.contains("greedy");
  const double bound = greedy ? 1e-4 : 2e-5;
  options.first_position = entry.value("first", 0);
  options.slots = 1;
  ModelRunner runner(directory, options);
  const auto logits = runner.sequence(ids, 64);
  for (const nlohmann::json& at : entry.at("logits")) {
    const auto expected = at.at("values").get<std::vector<double>>();
    const auto& found = logits.at(at.at("position").get<size_t>());
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(double{found[i]}, expected[i], bound) << at.at("position") << ", " << i;
    }
  }
  if (greedy) {
    EXPECT_EQ(runner.greedy(ids, 24), entry.at("greedy").get<std::vector<int32_t>>());
  }
}

}  // namespace tessera
