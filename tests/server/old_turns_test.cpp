#include "server/responses/old_turns.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/base/thread_time.h"
#include "tests/server/fake_engine.h"

namespace tessera {
namespace {

std::vector<ChatMessage>& messages_of(Prompt& prompt) {
  return std::get<Conversation>(prompt).messages;
}

int64_t tokens_of(const FakeService& fake, const Prompt& prompt) {
  return std::ssize(fake.service->prompts().tokenize(prompt, {}).value());
}

TEST(OldTurns, LeaveAsManyAsFit) {
  FakeService fake;
  const int64_t context = fake.engine->options().context;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Prompt prompt = Conversation{};
    messages_of(prompt).push_back({.role = "system", .content = "S"});
    const auto count = 2 + random() % 400;
    for (std::size_t i = 0; i < count; ++i) {
      const char* const role = random() % 3 == 0 ? "assistant" : "user";
      messages_of(prompt).push_back({.role = role, .content = std::string(random() % 5000, 'a')});
    }
    const std::vector<ChatMessage> all = messages_of(prompt);
    ASSERT_TRUE(drop_old_turns(*fake.service, {}, prompt).ok());
    const std::vector<ChatMessage>& left = messages_of(prompt);
    EXPECT_EQ(left.front().content, "S");
    EXPECT_EQ(left.back().content, all.back().content);
    EXPECT_LE(tokens_of(fake, prompt), context - context / 8) << "seed " << seed;
    if (left.size() < all.size()) {
      EXPECT_EQ(left[1].role, "user") << "seed " << seed;
      EXPECT_GT(tokens_of(fake, prompt), context - context / 8 - 60'000) << "seed " << seed;
    } else {
      EXPECT_EQ(left.size(), all.size());
    }
  }
}

TEST(OldTurns, CostNoMoreThanTheContext) {
  FakeService fake;
  Prompt prompt = Conversation{};
  for (int i = 0; i < 2000; ++i) {
    messages_of(prompt).push_back({.role = "user", .content = std::string(20'000, 'a')});
  }
  const int64_t before = thread_nanoseconds();
  ASSERT_TRUE(drop_old_turns(*fake.service, {}, prompt).ok());
  EXPECT_LT(thread_nanoseconds() - before, 200'000'000) << "40 MB take a second, once";
  EXPECT_EQ(messages_of(prompt).size(), 4U);
}

TEST(OldTurns, StayIfTheRestIsTooLongByItself) {
  FakeService fake;
  Prompt prompt = Conversation{};
  messages_of(prompt).push_back({.role = "system", .content = std::string(8'000'000, 'a')});
  for (int i = 0; i < 1000; ++i) {
    messages_of(prompt).push_back({.role = "user", .content = "b"});
  }
  const int64_t before = thread_nanoseconds();
  ASSERT_TRUE(drop_old_turns(*fake.service, {}, prompt).ok());
  EXPECT_LT(thread_nanoseconds() - before, 100'000'000) << "the long message is not tokenized";
  EXPECT_EQ(messages_of(prompt).size(), 2U);
}

// The count knows nothing of the template, which here prints a role of 60 bytes.
TEST(OldTurns, FitEvenIfTheTemplatePrintsMuchMore) {
  FakeService fake;
  Prompt prompt = Conversation{};
  const std::string role(60, 'r');
  for (int i = 0; i < 5000; ++i) {
    messages_of(prompt).push_back({.role = "user", .content = "b"});
    messages_of(prompt).push_back({.role = role, .content = ""});
  }
  const int64_t context = fake.engine->options().context;
  const int64_t before = thread_nanoseconds();
  ASSERT_TRUE(drop_old_turns(*fake.service, {}, prompt).ok());
  EXPECT_LE(tokens_of(fake, prompt), context - context / 8);
  EXPECT_GT(tokens_of(fake, prompt), context / 2);
  EXPECT_LT(thread_nanoseconds() - before, 400'000'000);
}

}  // namespace
}  // namespace tessera
