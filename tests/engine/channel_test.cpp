#include "engine/channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace tessera {
namespace {

TEST(Channel, GivesMessagesInTheOrderTheyCame) {
  Channel<int> channel(3);
  std::vector<int> out;
  for (int round = 0; round < 5; ++round) {  // wraps around the ring
    EXPECT_TRUE(channel.try_push(2 * round));
    EXPECT_TRUE(channel.try_push(2 * round + 1));
    channel.drain(out);
  }
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Channel, RefusesWhenFullAndLeavesTheMessageToItsOwner) {
  Channel<std::unique_ptr<int>> channel(1);
  EXPECT_TRUE(channel.try_push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(channel.try_push(std::move(second)));
  ASSERT_NE(second, nullptr);
  std::vector<std::unique_ptr<int>> out;
  channel.drain(out);
  EXPECT_TRUE(channel.try_push(std::move(second)));
}

TEST(Channel, ClosedRefusesButCanStillBeDrained) {
  Channel<int> channel(2);
  EXPECT_TRUE(channel.try_push(7));
  channel.close();
  EXPECT_FALSE(channel.try_push(8));
  EXPECT_TRUE(channel.wait());
  std::vector<int> out;
  channel.drain(out);
  EXPECT_EQ(out, std::vector<int>{7});
  EXPECT_FALSE(channel.wait());
}

TEST(Channel, WakesTheReceiverForAMessageAndForTheClose) {
  Channel<int> channel(1);
  std::thread sender([&] { EXPECT_TRUE(channel.try_push(1)); });
  EXPECT_TRUE(channel.wait());
  sender.join();
  std::vector<int> out;
  channel.drain(out);
  std::thread closer([&] { channel.close(); });
  EXPECT_FALSE(channel.wait());
  closer.join();
}

TEST(Channel, LosesNothingBetweenManySendersAndOneReceiver) {
  constexpr int kSenders = 4;
  constexpr int kMessages = 5000;
  Channel<int> channel(16);
  std::vector<std::thread> senders;
  for (int sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      for (int i = 0; i < kMessages; ++i) {
        while (!channel.try_push(sender * kMessages + i)) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<int> out;
  while (out.size() < size_t{kSenders} * kMessages) {
    ASSERT_TRUE(channel.wait());
    channel.drain(out);
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  EXPECT_EQ(std::set<int>(out.begin(), out.end()).size(), out.size());
}

}  // namespace
}  // namespace tessera
