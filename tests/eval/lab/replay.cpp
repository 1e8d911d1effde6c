#include "tests/eval/lab/replay.h"

#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

void expect_rows(const Cache& cache, Rows HeadCache::*of, const nlohmann::json& packed) {
  const Rows expected = unpack(packed, cache.shape.head_dim);
  int64_t next = 0;
  for (const HeadCache& head : cache.heads) {
    if (next == expected.rows()) return;
    for (int32_t entry = 0; entry < head.size(); ++entry, ++next) {
      ASSERT_LT(next, expected.rows());
      for (size_t i = 0; i < expected.row(next).size(); ++i) {
        ASSERT_NEAR((head.*of).row(entry)[i], expected.row(next)[i], 1e-5) << "row " << next;
      }
    }
  }
}

}  // namespace

Replay replay_golden_prompt(Method& method, int32_t filled) {
  Replay replay;
  replay.cache = compute_from_golden_model(method, filled);
  replay.read = read_golden_tokens(method, replay.cache);
  replay.bytes = method.bytes(replay.cache);
  return replay;
}

void expect_replay_as_golden(std::string_view name) {
  const nlohmann::json expected = golden(name);
  for (const auto& [numbers, wanted] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, golden_prompt().shape);
    const Replay replay = replay_golden_prompt(*method, wanted["filled"]);
    if (wanted.contains("read")) {
      EXPECT_EQ(nlohmann::json(replay.read), wanted["read"]);
    }
    if (wanted.contains("kept")) {
      EXPECT_EQ(nlohmann::json(kept_positions(replay.cache)), wanted["kept"]);
    }
    if (wanted.contains("keys")) {
      expect_rows(replay.cache, &HeadCache::keys, wanted["keys"]);
      expect_rows(replay.cache, &HeadCache::values, wanted["values"]);
    }
    if (wanted.contains("bytes")) {
      EXPECT_EQ(replay.bytes, wanted["bytes"].get<int64_t>());
    }
  }
}

}  // namespace tessera::lab
