#include <gtest/gtest.h>

#include "tests/eval/lab/golden.h"

namespace tessera::lab {
namespace {

TEST(H2o, KeepsTheLargestSumsWhileItGenerates) {
  expect_kept_while_generating("h2o");
}

TEST(A2sf, KeepsTheLargestFadingSumsWhileItGenerates) {
  expect_kept_while_generating("a2sf");
}

TEST(Scissorhands, DropsTheUnimportantTokensAtOnceWhenItsBufferIsFull) {
  expect_kept_while_generating("scissorhands");
}

TEST(Keyformer, KeepsTheLargestSumsOfItsSoftmaxWhileItGenerates) {
  expect_kept_while_generating("keyformer");
}

TEST(LazyEviction, EvictsAfterEachObservationWindow) {
  expect_kept_while_generating("lazy-eviction");
}

TEST(Tova, KeepsTheTokensThatKvpressKeeps) {
  expect_kept(golden("tova")["press"], "tova");
}

TEST(Tova, EvictsOneTokenForEachGeneratedOne) {
  expect_kept_later(golden("tova")["paper"], "tova");
}

TEST(ExpectedAttention, KeepsTheTokensThatKvpressKeeps) {
  expect_kept_as_golden("expected-attention");
}

// Both have the same distances. kvpress turns all keys back to their positions in the cache, and
// the method turns its sinks ahead by the number of dropped tokens.
TEST(StreamingLlm, HasTheKeysOfKvpressAtAnotherOrigin) {
  const nlohmann::json expected = golden("streaming-llm");
  for (const auto& [numbers, layers] : expected.items()) {
    const auto method = make_method("streaming-llm:" + numbers, golden_prompt().shape);
    const Cache cache = compute_from_golden_model(*method, golden_prompt().size());
    for (int32_t layer = 0; layer < cache.shape.layers; ++layer) {
      for (int32_t head = 0; head < cache.shape.kv_heads; ++head) {
        Rows keys = cache.at(layer, head).keys;
        const Rows golden_keys =
            unpack(layers[static_cast<size_t>(layer)][static_cast<size_t>(head)], keys.cols());
        ASSERT_EQ(keys.rows(), golden_keys.rows());
        const auto dropped = static_cast<int32_t>(golden_prompt().size() - keys.rows());
        for (int64_t i = 0; i < keys.rows(); ++i) {
          golden_model().rotate_back(layer, dropped, keys.row(i));
          for (size_t j = 0; j < keys.row(i).size(); ++j) {
            EXPECT_NEAR(keys.row(i)[j], golden_keys.row(i)[j], 1e-5) << "entry " << i;
          }
        }
      }
    }
  }
}

TEST(StreamingLlm, MovesItsSinksWithEachGeneratedToken) {
  const auto method = make_method("streaming-llm:budget=0.25", golden_prompt().shape);
  Cache cache = compute_from_golden_model(*method, 64);
  read_golden_tokens(*method, cache);
  const HeadCache& head = cache.at(1, 0);
  ASSERT_EQ(head.size(), 16);
  EXPECT_EQ(head.positions.back(), 95);
  const LayerPrompt& from = golden_prompt().layers[1];
  const std::span<const float> before = from.keys_before.row(2).first(8);
  std::vector<float> moved(before.begin(), before.end());
  golden_model().rotate(1, 96 - 16 + 2, moved);
  for (size_t i = 0; i < moved.size(); ++i) EXPECT_NEAR(head.keys.row(2)[i], moved[i], 1e-5);
}

}  // namespace
}  // namespace tessera::lab
