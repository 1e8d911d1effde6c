// kv_store in a key frame, compared with kv_store of keys that are in the frame already.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"

namespace tessera {
namespace {

constexpr int32_t kFrameDim = 64;
constexpr int32_t kFrameHeads = 2;
constexpr int32_t kGroupOfQueries = 3;
constexpr int32_t kFramedTokens = 150;  // two closed groups and an open one

class InAKeyFrame : public testing::TestWithParam<Device> {
 protected:
  static KvArenaShape shape(KvFormat format) {
    KvArenaShape shape{.formats = {format},
                       .head_dim = kFrameDim,
                       .page_bytes = KvPageLayout::make(format, kFrameDim, 64).page_bytes,
                       .slots = 1,
                       .layers = 1,
                       .kv_heads = kFrameHeads,
                       .context = 256};
    shape.pages = static_cast<int32_t>(shape.rows()) * shape.row_pages();
    return shape;
  }

  // Stores all tokens in one step. Queries are in the frame afterwards.
  void store(ReachedArena& arena, std::vector<float>& keys, const std::vector<float>& values,
             const KeyFrame& frame) {
    const Backend& backend = *GetParam().backend;
    const std::vector<SequenceSpan> spans{{0, 0, kFramedTokens, 0, {}}};
    const std::vector<KvGrowth> grown{{0, {}, kKvGroup * spans[0].closed_after()}};
    const Stream stream = GetParam().stream;
    backend.kv_resize({.pool = (*arena).pool(), .released = {}, .grown = grown}, stream);
    DenseGroups dense(dense_groups(spans[0]) * kFrameHeads *
                      (*arena).view().residual_layout.page_bytes);
    const int64_t cols = kFrameHeads * kFrameDim;
    backend.kv_store({.keys = {keys.data(), kFramedTokens, cols, cols},
                      .values = {values.data(), kFramedTokens, cols, cols},
                      .sequences = spans,
                      .pages = (*arena).view(),
                      .layer = 0,
                      .dense = dense.bytes(),
                      .frame = frame},
                     stream);
    GetParam().wait(stream);
  }
};

TEST_P(InAKeyFrame, StoresTheBytesOfKeysThatAreInItAlready) {
  std::mt19937 random(20261129);
  const auto width = static_cast<size_t>(kFrameHeads * kFrameDim);
  std::vector<float> centre = random_floats(random, kFrameHeads * kFrameDim);
  std::vector<float> scale(width);
  for (size_t c = 0; c < width; ++c) {
    centre[c] *= 100;
    scale[c] = std::exp2(static_cast<float>(static_cast<int>(random() % 9) - 4));
  }
  const std::vector<float> keys = random_floats(random, kFramedTokens * kFrameHeads * kFrameDim);
  const std::vector<float> values = random_floats(random, kFramedTokens * kFrameHeads * kFrameDim);
  const std::vector<float> queries =
      random_floats(random, kFramedTokens * kFrameHeads * kGroupOfQueries * kFrameDim);
  std::vector<float> framed = keys;
  for (size_t i = 0; i < framed.size(); ++i) {
    framed[i] = (framed[i] - centre[i % width]) * scale[i % width];
  }
  for (const KvFormat format : {kKvF16, kKvK8V4, kKvK4V2, kKvK4V4R, kKvS50}) {
    if (!serves(GetParam(), format)) continue;
    SCOPED_TRACE(testing::Message() << name_of(format));
    ReachedArena expected(GetParam(), shape(format));
    ReachedArena actual(GetParam(), shape(format));
    std::vector<float> already = framed;
    std::vector<float> plain = keys;
    std::vector<float> turned = queries;
    const int64_t query_cols = kFrameHeads * kGroupOfQueries * kFrameDim;
    store(expected, already, values, {});
    store(actual, plain, values,
          {.centre = centre,
           .scale = scale,
           .queries = {turned.data(), kFramedTokens, query_cols, query_cols}});
    for (int64_t row = 0; row < kFrameHeads; ++row) {
      EXPECT_EQ(row_bytes(*actual, row, {}, kFramedTokens),
                row_bytes(*expected, row, {}, kFramedTokens));
    }
    for (size_t i = 0; i < turned.size(); ++i) {
      const size_t head = i % static_cast<size_t>(query_cols) / (kGroupOfQueries * kFrameDim);
      const float by = scale[head * kFrameDim + i % kFrameDim];
      ASSERT_EQ(turned[i], queries[i] / by) << "query element " << i;
    }
    EXPECT_EQ(plain, keys) << "keys of the step stay";
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(InAKeyFrame);
INSTANTIATE_TEST_SUITE_P(Devices, InAKeyFrame, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace tessera
