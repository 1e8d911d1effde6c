#include "server/kv_events/kv_event_message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using Json = nlohmann::json;

std::vector<Json> messages_of(const PrefixEvents::Batch& batch, int32_t block_tokens) {
  std::vector<Json> messages;
  write_kv_messages(batch, block_tokens, 12.5, [&](const std::string& message) {
    messages.push_back(Json::from_msgpack(message));
  });
  return messages;
}

TEST(KvEventMessage, JoinsBlocksOfOnePathAndConsecutiveRemovals) {
  const PrefixEvents::Batch batch{
      .of_stores = {},
      .events = {{true, 10, 0}, {true, 11, 10}, {true, 20, 10}, {false, 11}, {false, 20}},
      .tokens = {1, 2, 3, 4, 5, 6}};
  EXPECT_EQ(messages_of(batch, 2), std::vector<Json>{Json::parse(R"([12.5, [
                ["BlockStored", [10, 11], null, [1, 2, 3, 4], 2, null, null],
                ["BlockStored", [20], 10, [5, 6], 2, null, null],
                ["BlockRemoved", [11, 20], null]], 0])")});
}

TEST(KvEventMessage, NamesTheMediumOfCopies) {
  using Store = PrefixEvents::Store;
  PrefixEvents::Batch batch;
  batch.of_stores = {{Store::host, true, 10},
                     {Store::host, true, 11},
                     {Store::disk, true, 11},
                     {Store::host, false, 10},
                     {Store::disk, false, 11}};
  EXPECT_EQ(messages_of(batch, 2), std::vector<Json>{Json::parse(R"([12.5, [
                ["BlockStored", [10, 11], null, [], 2, null, "CPU"],
                ["BlockStored", [11], null, [], 2, null, "DISK"],
                ["BlockRemoved", [10], "CPU"],
                ["BlockRemoved", [11], "DISK"]], 0])")});
}

TEST(KvEventMessage, IsBoundedInBytes) {
  constexpr int32_t kBlock = 256;
  PrefixEvents::Batch batch;
  for (uint64_t block = 1; block <= 1000; ++block) {
    batch.events.push_back({true, block << 40, block == 1 ? 0 : (block - 1) << 40});
    batch.tokens.insert(batch.tokens.end(), kBlock, 1 << 20);
  }
  uint64_t blocks = 0;
  write_kv_messages(batch, kBlock, 1.25, [&](const std::string& message) {
    EXPECT_LE(message.size(), 140'000U);
    const Json event = Json::from_msgpack(message)[1][0];
    EXPECT_EQ(event[2], blocks == 0 ? Json() : Json(blocks << 40))
        << "a path goes on in the next message";
    blocks += event[1].size();
  });
  EXPECT_EQ(blocks, 1000U);
}

}  // namespace
}  // namespace tessera
