// Serialisation of the requests that the leader broadcasts (engine/ranks.h).

#include "engine/request_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/kv/kv_presets.h"
#include "engine/ranks.h"
#include "tests/engine/recording_sink.h"

namespace tessera {
namespace {

EngineRequest full_request() {
  EngineRequest request;
  request.prompt = {5, 6, 7};
  request.sampling = {.temperature = 0.5f,
                      .top_p = 0.25f,
                      .top_k = 3,
                      .seed = ~uint64_t{0},
                      .min_p = 0.125f,
                      .repetition_penalty = 1.5f,
                      .presence_penalty = -1,
                      .frequency_penalty = 2,
                      .logit_bias = {{4, -100}, {9, 1}},
                      .min_tokens = 2,
                      .top_logprobs = 5,
                      .prompt_logprobs = 0,
                      .typical_p = 0.75f,
                      .allowed_token_ids = {4, 9, 70},
                      .bad_words = {{1, 2}, {3}},
                      .dry_multiplier = 0.5f,
                      .dry_base = 2,
                      .dry_allowed_length = 3,
                      .dry_penalty_last_n = 64,
                      .dry_sequence_breakers = {13, 14}};
  request.max_tokens = 11;
  request.stop_ids = {1};
  request.ignore_eos = true;
  request.priority = -3;
  request.forced = {8, 8};
  request.observe_logits = true;
  request.pooling = Pooling::cls;
  request.kv = *find_kv_preset("leankv");
  request.cache_salt = std::string("a\0b", 3);
  request.cache = {.use = false, .pin = true, .ttl = std::chrono::seconds(7), .demote = true};
  request.cache_accept = kKvK4V2;
  request.kv_floor = 0.5f;
  request.deadline = std::chrono::steady_clock::time_point(std::chrono::seconds(12));
  request.start_by = std::chrono::steady_clock::time_point(std::chrono::seconds(11));
  request.tenant = {.id = 7, .share = 3, .pin_tokens = 640};
  request.kept = {{640, std::chrono::seconds(9)}};
  request.deterministic = true;
  request.sinks.assign(3, std::make_shared<RecordingSink>());
  return request;
}

TEST(RequestBytes, BringEveryField) {
  std::vector<std::byte> bytes;
  append_request(full_request(), bytes);
  append_request(EngineRequest{}, bytes);
  std::span<const std::byte> left(bytes);
  const auto sink = std::make_shared<RecordingSink>();
  const EngineRequest read = take_request(left, sink);
  const EngineRequest written = full_request();
  EXPECT_EQ(read.prompt, written.prompt);
  EXPECT_EQ(read.sampling.temperature, 0.5f);
  EXPECT_EQ(read.sampling.seed, ~uint64_t{0});
  ASSERT_EQ(read.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(read.sampling.logit_bias[1].token, 9);
  EXPECT_EQ(read.sampling.prompt_logprobs, 0);
  EXPECT_EQ(read.sampling.typical_p, 0.75f);
  EXPECT_EQ(read.sampling.allowed_token_ids, written.sampling.allowed_token_ids);
  EXPECT_EQ(read.sampling.bad_words, written.sampling.bad_words);
  EXPECT_EQ(read.sampling.dry_penalty_last_n, 64);
  EXPECT_EQ(read.sampling.dry_sequence_breakers, written.sampling.dry_sequence_breakers);
  EXPECT_EQ(read.forced, written.forced);
  EXPECT_EQ(read.pooling, Pooling::cls);
  EXPECT_EQ(read.kv, written.kv);
  EXPECT_EQ(read.cache_salt, written.cache_salt);
  EXPECT_EQ(read.cache.ttl, written.cache.ttl);
  EXPECT_EQ(read.cache_accept, written.cache_accept);
  EXPECT_EQ(read.kv_floor, written.kv_floor);
  EXPECT_EQ(read.deadline, written.deadline);
  EXPECT_EQ(read.start_by, written.start_by);
  EXPECT_EQ(read.tenant.id, 7);
  EXPECT_EQ(read.tenant.share, 3);
  EXPECT_EQ(read.tenant.pin_tokens, 640);
  EXPECT_TRUE(read.cache.demote);
  ASSERT_EQ(read.kept.size(), 1u);
  EXPECT_EQ(read.kept[0].tokens, 640);
  EXPECT_EQ(read.kept[0].ttl, std::chrono::seconds(9));
  EXPECT_EQ(read.sinks, (std::vector<std::shared_ptr<EventSink>>(3, sink)));
  // Serialising it again gives the same bytes, field by field.
  std::vector<std::byte> again;
  append_request(read, again);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), bytes.begin()));
  const EngineRequest plain = take_request(left, sink);
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(plain.kv, std::nullopt);
  EXPECT_EQ(plain.deadline, std::nullopt);
}

TEST(RequestBytesDeathTest, AreOurOwnBugIfTheyEndTooEarly) {
  std::vector<std::byte> bytes;
  append_request(full_request(), bytes);
  std::span<const std::byte> left = std::span(bytes).first(bytes.size() / 2);
  EXPECT_DEATH(take_request(left, nullptr), "ends too early");
}

// The second of two ranks; its numbers differ from those of the first.
class Stranger final : public Communicator {
 public:
  int32_t rank() const override { return 1; }
  int32_t ranks() const override { return 2; }
  void all_reduce_sum(std::span<float>, Stream) override {}
  bool records_sums() const override { return false; }
  void broadcast(std::span<std::byte>) override {}
  void all_gather(std::span<const int64_t> own, std::span<int64_t> all) override {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = own[i % own.size()] + (i < own.size() ? 1 : 0);
    }
  }
  [[noreturn]] void abort() override { std::abort(); }
};

TEST(RanksDeathTest, OnesThatGoApartEndBeforeTheStep) {
  Stranger communicator;
  Ranks ranks(&communicator);
  EXPECT_DEATH(ranks.verify_identical(5, 12), "rank 1 plans a different step 12 than rank 0");
}

}  // namespace
}  // namespace tessera
