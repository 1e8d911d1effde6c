// What requests wish of the prefix cache: pins of the beginnings of prompts, and hints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/engine/engine_fixture.h"

namespace tessera {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

class CacheSink final : public RecordingSink {
 public:
  void on_prompt_in_cache(const PromptInCache& prompt) override {
    told.push_back(prompt);
    EXPECT_TRUE(tokens().empty()) << "before the first token";
  }
  std::vector<PromptInCache> told;
};

class PrefixWishes : public testing::Test {
 protected:
  // Memory for twelve prefix blocks, four of which are one context.
  explicit PrefixWishes(int64_t host_bytes = 0) {
    EngineOptions options;
    options.tiers.host_bytes = host_bytes;
    options.context = 256;
    options.max_sequences = 2;
    options.max_step_tokens = 64;
    options.clock = [this] { return now_; };
    options.kv_bytes = FakeEngine::kv_bytes(options, 12);
    fake_ = std::make_unique<FakeEngine>(options);
    block_ = fake_->engine->stats().prefix_block_tokens;
  }

  std::shared_ptr<CacheSink> ask(EngineRequest request) {
    auto sink = std::make_shared<CacheSink>();
    request.sinks = {sink};
    EXPECT_TRUE(fake_->engine->submit(std::move(request)).ok());
    fake_->step_until_idle();
    EXPECT_TRUE(sink->finish().has_value());
    return sink;
  }
  EngineRequest chat(int32_t number, int32_t blocks = 2) const {
    return request_of(prompt_of(blocks * block_ + 1, number), 1);
  }
  EngineRequest kept(int32_t number, int32_t blocks, seconds ttl) const {
    EngineRequest request = chat(number);
    request.kept = {{blocks * block_, ttl}};
    return request;
  }
  int32_t cached(int32_t number) { return ask(chat(number))->finish()->cached_tokens; }
  // Other prompts, more than memory holds.
  void crowd() {
    for (int32_t i = 20; i < 30; ++i) {
      ask(chat(i));
    }
  }
  PrefixCacheStats stats() const { return fake_->engine->stats().cache; }

  std::chrono::steady_clock::time_point now_{};
  std::unique_ptr<FakeEngine> fake_;
  int32_t block_ = 0;
};

TEST_F(PrefixWishes, KeepTheBeginningOfAPromptAndNoMore) {
  const auto sink = ask(kept(0, 1, seconds(300)));
  ASSERT_EQ(sink->told.size(), 1u);
  EXPECT_EQ(sink->told[0].cached_tokens, 0);
  EXPECT_THAT(sink->told[0].kept, ElementsAre(block_, 0));
  crowd();
  EXPECT_EQ(cached(0), block_) << "the second block was evicted";
}

TEST_F(PrefixWishes, RoundAKeptPrefixDownToWholeBlocks) {
  EngineRequest request = chat(0);
  request.kept = {{2 * block_ - 1, seconds(300)}, {block_ - 1, seconds(3600)}};
  EXPECT_THAT(ask(request)->told.at(0).kept, ElementsAre(block_, 0));
  EXPECT_EQ(stats().pinned_blocks, 1);
}

TEST_F(PrefixWishes, AreRenewedByEachHitOfTheirTenantAndEndAfterTheLastOne) {
  ask(kept(0, 2, seconds(300)));
  for (int32_t i = 0; i < 3; ++i) {
    now_ += seconds(299);
    EXPECT_EQ(cached(0), 2 * block_);
  }
  now_ += seconds(299);
  EngineRequest other = chat(0);
  other.tenant.id = 7;
  ask(other);
  now_ += seconds(1);
  fake_->step_until_idle();
  EXPECT_EQ(stats().pinned_blocks, 0) << "of another tenant";
}

TEST_F(PrefixWishes, CountABlockOnceThatSeveralPinsKeep) {
  const auto both = [&](int32_t number) {
    EngineRequest request = request_of(prompt_of(block_, 0), 1);
    const std::vector<int32_t> own = prompt_of(block_ + 1, number);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.kept = {{2 * block_, seconds(300)}, {block_, seconds(3600)}};
    request.tenant.pin_tokens = 3 * block_;
    return ask(request)->told.at(0).kept;
  };
  EXPECT_THAT(both(1), ElementsAre(2 * block_, block_));
  EXPECT_THAT(both(2), ElementsAre(2 * block_, block_)) << "three blocks in all";
  EXPECT_THAT(both(3), ElementsAre(0, block_)) << "a fourth one is beyond the share";
}

TEST_F(PrefixWishes, LeaveRoomForOneWholeContext) {
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_THAT(ask(kept(i, 2, seconds(300)))->told.at(0).kept, ElementsAre(2 * block_, 0));
  }
  EXPECT_THAT(ask(kept(4, 2, seconds(300)))->told.at(0).kept, ElementsAre(0, 0));
  EXPECT_GT(ask(request_of(prompt_of(255, 50), 1))->finish()->completion_tokens, 0);
}

TEST_F(PrefixWishes, EvictWhatIsReleasedBeforeWhatIsOlder) {
  ask(chat(0));
  EngineRequest request = chat(1);
  request.cache.release = true;
  request.kept = {{2 * block_, seconds(300)}};
  ask(request);
  EXPECT_EQ(stats().pinned_blocks, 0) << "a release keeps nothing";
  while (stats().evicted_blocks < 2) {
    ask(chat(static_cast<int32_t>(2 + stats().inserted_blocks)));
  }
  EXPECT_EQ(cached(0), 2 * block_);
}

TEST_F(PrefixWishes, KeepWhatOthersShareWhenAPromptIsReleased) {
  EngineRequest longer = chat(0, 3);
  ask(longer);
  EngineRequest request = chat(0, 2);
  request.prompt.assign(longer.prompt.begin(), longer.prompt.begin() + 2 * block_ + 1);
  request.cache.release = true;
  ask(request);
  ask(chat(1));
  ask(chat(2));
  while (stats().evicted_blocks < 1) {
    ask(chat(static_cast<int32_t>(3 + stats().inserted_blocks)));
  }
  EXPECT_GE(ask(longer)->finish()->cached_tokens, 2 * block_);
}

TEST_F(PrefixWishes, PinAPromptWhoseAnswerWasStopped) {
  EngineRequest request = chat(0);
  request.max_tokens = 20;
  request.cache.pin = true;
  auto sink = std::make_shared<RecordingSink>();
  sink->after_token = [this](int32_t) { fake_->engine->cancel(1); };
  request.sinks = {sink};
  ASSERT_EQ(fake_->engine->submit(std::move(request)).value(), 1u);
  fake_->step_until_idle();
  EXPECT_EQ(sink->finish()->reason, FinishReason::cancelled);
  EXPECT_EQ(stats().pinned_blocks, 2);
}

TEST_F(PrefixWishes, AnswerAPrefetchWithoutComputing) {
  ask(chat(0));
  const int64_t computed = fake_->engine->stats().prompt_tokens;
  EngineRequest request = chat(0);
  request.cache.prefetch = true;
  request.kept = {{block_, seconds(300)}};
  request.max_tokens = 0;
  const auto sink = ask(request);
  EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  EXPECT_EQ(sink->finish()->cached_tokens, 2 * block_);
  EXPECT_THAT(sink->told.at(0).kept, ElementsAre(block_, 0));
  EXPECT_TRUE(sink->tokens().empty());
  EXPECT_EQ(fake_->engine->stats().prompt_tokens, computed);
}

// A pin ends where requests need its memory and a store has its blocks.
class StoredWishes : public PrefixWishes {
 protected:
  StoredWishes() : PrefixWishes(int64_t{64} << 20) {}
};

TEST_F(StoredWishes, GiveTheirMemoryToRequestsAndComeBackFromTheStore) {
  ask(kept(0, 2, seconds(300)));
  ask(kept(1, 2, seconds(300)));
  EXPECT_EQ(stats().pinned_blocks, 4);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int32_t i = 0; i < 2; ++i) {
    sinks.push_back(fake_->submit(request_of(prompt_of(4 * block_ - 8, 40 + i), 6)));
  }
  fake_->step_until_idle();
  EXPECT_EQ(stats().pinned_blocks, 4) << "eight blocks beside four pinned ones fit";
  ask(kept(2, 2, seconds(300)));
  for (int32_t i = 0; i < 2; ++i) {
    sinks.push_back(fake_->submit(request_of(prompt_of(4 * block_ - 8, 50 + i), 6)));
  }
  fake_->step_until_idle();
  EXPECT_EQ(stats().pinned_blocks, 4) << "the pin that was used first has ended";
  EXPECT_EQ(fake_->engine->stats().preemptions, 0);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->finish()->reason, FinishReason::length);
  }
  crowd();
  EngineRequest prefetch = chat(0);
  prefetch.cache.prefetch = true;
  int32_t read = 0;
  for (int32_t i = 0; i < 5000 && read == 0; ++i) {  // until the store's thread has written it
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    read = ask(prefetch)->finish()->cached_tokens;
  }
  EXPECT_EQ(read, 2 * block_);
  EXPECT_GT(fake_->engine->stats().tiers.restored_blocks, 0);
}

TEST_F(PrefixWishes, KeepNothingOfARequestThatDoesNotUseTheCache) {
  EngineRequest request = kept(0, 2, seconds(300));
  request.cache.use = false;
  EXPECT_THAT(ask(request)->told.at(0).kept, ElementsAre(0, 0));
  request.cache.prefetch = true;
  EXPECT_EQ(ask(request)->finish()->cached_tokens, 0);
}

}  // namespace
}  // namespace tessera
