// In a sparse format a generated token reads the newest tokens dense, also those in the group
// before its own.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/pages/page_codec.h"
#include "tests/kernels/device.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/kv_sequences.h"
#include "tests/kernels/step_plan.h"

namespace tessera {
namespace {

struct NewestShape {
  KvFormat format = kKvS50;
  int32_t newest = 32;
  int32_t prompt = 150;
  int32_t tokens = 300;
  int32_t head_dim = 16;
  int32_t kv_heads = 2;
  int32_t gqa_ratio = 2;
  int32_t sliding_window = 0;
};

// One sequence in one layer: a prompt in chunks, then one token for each step.
class NewestDense {
 public:
  NewestDense(const NewestShape& shape, const Device& device, uint32_t seed)
      : shape_(shape), device_(device) {
    std::mt19937 random(seed);
    queries_ = random_floats(random, shape.tokens * query_cols(), 2.0f);
    keys_ = random_floats(random, shape.tokens * kv_cols());
    values_ = random_floats(random, shape.tokens * kv_cols());
    KvArenaShape arena{.formats = {shape.format},
                       .head_dim = shape.head_dim,
                       .slots = 2,
                       .layers = 1,
                       .kv_heads = shape.kv_heads,
                       .context = shape.tokens};
    arena.page_bytes = KvPageLayout::make(shape.format, shape.head_dim, 32).page_bytes;
    arena.pages = static_cast<int32_t>(arena.rows()) * arena.row_pages();
    arena_ = std::make_unique<ReachedArena>(device, arena);
    for (int32_t t = 0; t < shape.tokens; ++t) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        dense_.push_back(read(t, head, kKvF16));
        stored_.push_back(read(t, head, shape.format));
      }
    }
  }

  // Returns: attention's output for every token. The prompt comes in chunks of `chunk` tokens.
  std::vector<float> run(int32_t chunk) {
    for (int32_t stored = 0; stored < shape_.tokens;) {
      const int32_t count = stored < shape_.prompt ? std::min(chunk, shape_.prompt - stored) : 1;
      step(stored, count);
      stored += count;
    }
    return out_;
  }

  // Expected output for a generated token, in double precision. Tokens that are neither among the
  // newest nor in its own group are read as the format stores them.
  std::vector<double> expected(int32_t position, int32_t head) const {
    double sum = 0;
    std::vector<double> out(static_cast<size_t>(shape_.head_dim));
    for (int32_t t = 0; t <= position; ++t) {
      const bool dense = t / kKvGroup == position / kKvGroup || t > position - shape_.newest;
      const auto token = static_cast<size_t>(t * shape_.kv_heads + head / shape_.gqa_ratio);
      const Token& seen = (dense ? dense_ : stored_)[token];
      double dot = 0;
      for (int32_t c = 0; c < shape_.head_dim; ++c) {
        dot += double{queries_[at(position, query_cols(), head, c)]} *
               seen.key[static_cast<size_t>(c)];
      }
      const double weight = std::exp(dot * scale());
      sum += weight;
      for (size_t c = 0; c < out.size(); ++c) {
        out[c] += weight * seen.value[c];
      }
    }
    for (double& channel : out) {
      channel /= sum;
    }
    return out;
  }

  size_t at(int32_t token, int64_t cols, int32_t head, int32_t channel) const {
    return static_cast<size_t>(token * cols + head * shape_.head_dim + channel);
  }
  int64_t query_cols() const { return kv_cols() * shape_.gqa_ratio; }

 private:
  int64_t kv_cols() const { return int64_t{shape_.kv_heads} * shape_.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  struct Token {
    std::vector<float> key, value;
  };

  Token read(int32_t token, int32_t kv_head, KvFormat format) const {
    // A group is closed from the f16 of the residual buffer.
    std::vector<float> key(static_cast<size_t>(shape_.head_dim));
    std::vector<float> value(key.size());
    const size_t first = at(token, kv_cols(), kv_head, 0);
    std::copy_n(&keys_[first], key.size(), key.data());
    std::copy_n(&values_[first], value.size(), value.data());
    for (const KvFormat form : {kKvF16, format}) {
      const KvPageLayout layout = KvPageLayout::make(form, shape_.head_dim, 16);
      std::vector<std::byte> page(static_cast<size_t>(layout.page_bytes));
      encode_token(layout, key.data(), value.data(), page.data(), 0);
      decode_token(layout, page.data(), 0, key.data(), value.data());
    }
    return {key, value};
  }

  MatrixView<const float> rows(const std::vector<float>& all, int64_t cols, int32_t first,
                               int32_t count) const {
    return {all.data() + first * cols, count, cols, cols};
  }

  void step(int32_t context, int32_t count) {
    const SequenceSpan spans[] = {{.slot = 1,
                                   .first_row = 0,
                                   .count = count,
                                   .context = context,
                                   .tiers = {0, 0},
                                   .newest = shape_.newest,
                                   .prompt = shape_.prompt}};
    const KvGrowth grown[] = {
        {1, {0, 0}, kKvGroup * (spans[0].closed_after() - spans[0].closed_before())}};
    const Backend& backend = *device_.backend;
    KvArena& arena = **arena_;
    std::vector<std::byte> dense(static_cast<size_t>(dense_groups(spans[0]) * shape_.kv_heads *
                                                     arena.view().residual_layout.page_bytes));
    const int32_t query_heads = shape_.kv_heads * shape_.gqa_ratio;
    const StepLimits limits{count, 1, shape_.tokens};
    std::vector<std::byte> scratch(
        static_cast<size_t>(backend.attention_scratch_bytes(limits, query_heads, shape_.head_dim)));
    backend.kv_resize({.pool = arena.pool(), .released = {}, .grown = grown}, device_.stream);
    backend.kv_store({.keys = rows(keys_, kv_cols(), context, count),
                      .values = rows(values_, kv_cols(), context, count),
                      .sequences = spans,
                      .pages = arena.view(),
                      .layer = 0,
                      .dense = dense},
                     device_.stream);
    out_.resize(static_cast<size_t>((context + count) * query_cols()));
    AttentionArgs args{
        .queries = rows(queries_, query_cols(), context, count),
        .sequences = spans,
        .pages = arena.view(),
        .query_heads = query_heads,
        .scale = scale(),
        .sliding_window = shape_.sliding_window,
        .dense = dense,
        .out = {out_.data() + context * query_cols(), count, query_cols(), query_cols()},
        .log_sums = {},
        .scratch = scratch};
    const std::vector<std::byte> plan = plan_step(device_, limits, args);
    backend.attention(args, device_.stream);
    device_.wait(device_.stream);
  }

  NewestShape shape_;
  const Device& device_;
  std::vector<float> queries_, keys_, values_, out_;
  std::vector<Token> dense_, stored_;  // [tokens, kv_heads], as attention reads them
  std::unique_ptr<ReachedArena> arena_;
};

class NewestTokens : public testing::TestWithParam<Device> {};

TEST_P(NewestTokens, AreReadDenseBesidesThoseOfTheOwnGroup) {
  const double max = multiplies_halves(*GetParam().backend) ? 1e-2 : 2e-3;
  for (const KvFormat format : {kKvS50, kKvS70K4V4, kKeysAlone}) {
    for (const int32_t newest : {0, 1, 32, 64}) {
      const NewestShape shape{.format = format, .newest = newest};
      NewestDense sequence(shape, GetParam(), 3);
      const std::vector<float> out = sequence.run(70);
      for (int32_t position = shape.prompt; position < shape.tokens; ++position) {
        for (int32_t head = 0; head < 4; ++head) {
          const std::vector<double> expected = sequence.expected(position, head);
          for (int32_t c = 0; c < shape.head_dim; ++c) {
            ASSERT_NEAR(out[sequence.at(position, sequence.query_cols(), head, c)],
                        expected[static_cast<size_t>(c)], max)
                << name_of(format) << ", newest " << newest << ", position " << position
                << ", head " << head;
          }
        }
      }
    }
  }
}

TEST_P(NewestTokens, GiveTheSameBitsHoweverThePromptIsCut) {
  for (const int32_t prompt : {63, 64, 65, 96, 127, 128, 129, 150}) {
    const NewestShape shape{.prompt = prompt, .tokens = prompt + 70};
    const std::vector<float> whole = NewestDense(shape, GetParam(), 4).run(prompt);
    for (const int32_t chunk : {1, 7, 32, 64, 100}) {
      EXPECT_EQ(NewestDense(shape, GetParam(), 4).run(chunk), whole)
          << "a prompt of " << prompt << " in chunks of " << chunk;
    }
  }
}

// A window reads all that it sees from the pages, though the residual buffer has the tokens too.
TEST_P(NewestTokens, AreReadAsStoredWithASlidingWindow) {
  if (GetParam().backend->plan_attention != nullptr) GTEST_SKIP() << "refused beside windows";
  for (const int32_t window : {20, 64, 100, 1000}) {
    const auto run = [&](int32_t newest) {
      const NewestShape shape{.newest = newest, .sliding_window = window};
      return NewestDense(shape, GetParam(), 5).run(70);
    };
    EXPECT_EQ(run(32), run(0)) << "a window of " << window;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NewestTokens);
INSTANTIATE_TEST_SUITE_P(Device, NewestTokens, testing::ValuesIn(devices_of_this_machine()),
                         [](const auto& device) { return device.param.name; });

}  // namespace
}  // namespace tessera
