// Estimates of attention by sketches of keys, against double precision and the scalar kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/attention/sketch_query.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pages/page_codec.h"
#include "kernels/cpu/tiles/pair_block.h"
#include "kernels/cpu/tiles/sketch_sums.h"
#include "kernels/kv/rotation.h"
#include "tests/kernels/decoded_sketch.h"
#include "tests/kernels/isas.h"

namespace tessera {
namespace {

// A full page of random keys in f32, with its sketch.
struct SketchedPage {
  SketchedPage(int32_t head_dim, int32_t tokens, float spread, std::mt19937& random)
      : layout(KvPageLayout::make(kKvF32, head_dim, tokens)),
        bytes(
            static_cast<size_t>(layout.page_bytes + key_sketch_bytes(head_dim, layout.capacity))) {
    for (int32_t token = 0; token < layout.capacity; ++token) {
      const std::vector<float> key = random_floats(random, head_dim, spread);
      encode_token(layout, key.data(), key.data(), bytes.data(), token);
    }
    write_key_sketch(layout, layout.capacity, bytes.data());
  }

  KvPageLayout layout;
  std::vector<std::byte> bytes;
};

// The definition, in double precision.
double estimate_of(const DecodedSketch& sketch, const float* query, int32_t head_dim, float scale,
                   int32_t tokens) {
  std::vector<double> products;
  double mean = 0;
  for (int32_t c = 0; c < head_dim; ++c) {
    mean += double{scale} * query[c] * sketch.mean(c);
  }
  double largest = 0;
  for (int32_t token = 0; token < tokens; ++token) {
    double product = 0;
    for (int32_t c = 0; c < head_dim; ++c) {
      product += double{scale} * query[c] * sketch.difference(token, c);
    }
    products.push_back(product);
    largest = std::max(largest, product);
  }
  double near = 0;
  for (const double product : products) {
    near += std::max(0.0, 1 - (largest - product) / 2);
  }
  return mean + largest + std::log(std::max(1.0, near));
}

TEST(SketchQueriesTest, EstimateAttentionAsInDoublePrecision) {
  for (const int32_t head_dim : {32, 64, 80, 128}) {
    std::mt19937 random(static_cast<uint32_t>(head_dim));
    const SketchedPage page(head_dim, 96, 1.5f, random);
    const DecodedSketch sketch(page.layout, page.bytes.data());
    constexpr int32_t kHeads = 5;
    std::vector<float> queries = random_floats(random, kHeads * head_dim, 2.0f);
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    float estimates[SketchQueries::kMaxHeads];
    const SketchQueries estimated(queries.data(), kHeads, head_dim, scale);
    estimated.estimate(page.layout, page.bytes.data(), 0, 3, ScalarSketch::add, estimates);
    for (int32_t head = 0; head < kHeads; ++head) {
      float* const query = queries.data() + int64_t{head} * head_dim;
      rotate(query, head_dim);
      const double expected = estimate_of(sketch, query, head_dim, scale, page.layout.capacity);
      // 0.06 of the logarithm, and the steps of the tables.
      EXPECT_NEAR(estimates[head], expected, 0.06 + 0.02 * std::abs(expected)) << head_dim;
    }
  }
}

TEST(SketchQueriesTest, FindAllPagesEqualWithoutUsableNumbers) {
  constexpr int32_t kHeadDim = 64;
  std::mt19937 random(4);
  const SketchedPage page(kHeadDim, 64, 1, random);
  for (const float odd : {0.0f, 1e-30f, static_cast<float>(NAN), HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> query(kHeadDim, odd);
    float estimates[SketchQueries::kMaxHeads];
    SketchQueries(query.data(), 1, kHeadDim, 0.125f)
        .estimate(page.layout, page.bytes.data(), 0, 2, ScalarSketch::add, estimates);
    EXPECT_NEAR(estimates[0], std::log(64.0f), 1e-6) << odd;
  }
}

TEST(SketchKernelTest, HasTheSumsOfTheScalarOne) {
  std::vector<SketchKernel> kernels;
  if (cpu_supports(CpuIsa::avx2)) {
    kernels.push_back(avx2::kAttentionKernels.sketch);
  }
  if (cpu_supports(CpuIsa::avx512)) {
    kernels.push_back(avx512::kAttentionKernels.sketch);
  }
  if (kernels.empty()) {
    GTEST_SKIP() << "no AVX2";
  }
  std::mt19937 random(9);
  const auto numbers = [&random]<class T>(T, int64_t count, int32_t first, int32_t end) {
    std::vector<T> all(static_cast<size_t>(count));
    for (T& one : all) {
      one = static_cast<T>(first + static_cast<int32_t>(random() % uint32_t(end - first)));
    }
    return all;
  };
  for (const int32_t head_dim : {32, 40, 64, 80, 128, 256}) {
    const int32_t padded = SketchStep::padded(head_dim);
    for (int32_t heads = 1; heads <= SketchStep::kMaxHeads; ++heads) {
      for (int32_t blocks = 1; blocks <= SketchStep::kMaxBlocks; ++blocks) {
        const auto mean = numbers(uint8_t{}, padded, 0, 256);
        const auto codes = numbers(uint8_t{}, int64_t{blocks} * head_dim * 8, 0, 256);
        const auto scales = numbers(uint8_t{}, int64_t{blocks} * kSketchTokens, 0, 256);
        auto factors = numbers(int16_t{}, int64_t{heads} * padded, -30000, 30001);
        for (int32_t i = 0; i < heads * padded; ++i) {
          if (i % padded >= head_dim) {
            factors[static_cast<size_t>(i)] = 0;
          }
        }
        const auto tables =
            numbers(uint8_t{}, int64_t{heads} * head_dim * 8, 0, 2 * SketchStep::kTableZero + 1);
        const auto widths = numbers(int16_t{}, SketchStep::kMaxHeads, 1, SketchStep::kMaxWidth + 1);
        const SketchStep step{mean.data(), codes.data(),   scales.data(), blocks,
                              head_dim,    factors.data(), tables.data(), widths.data()};
        SketchSums expected;
        ScalarSketch::add(step, heads, expected);
        for (const SketchKernel kernel : kernels) {
          SketchSums own;
          kernel(step, heads, own);
          for (int32_t head = 0; head < heads; ++head) {
            EXPECT_EQ(own.mean[head], expected.mean[head]) << head_dim;
            EXPECT_EQ(own.largest[head], expected.largest[head]) << head_dim << ' ' << blocks;
            EXPECT_EQ(own.near[head], expected.near[head]) << head_dim << ' ' << blocks;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
