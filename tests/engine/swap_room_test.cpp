#include "engine/kv/swap_room.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

namespace tessera {
namespace {

using Part = std::optional<SwapRoom::Part>;

TEST(SwapRoom, GivesNoMoreThanItHas) {
  const auto room = SwapRoom::make(1000);
  Part first = room->take(600);
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(first->bytes().size(), 600);
  EXPECT_FALSE(room->take(600).has_value());
  const Part second = room->take(300);
  EXPECT_TRUE(second.has_value());
  EXPECT_FALSE(room->take(100).has_value());
  first.reset();
  EXPECT_TRUE(room->take(600).has_value());
}

TEST(SwapRoom, FillsGapsWithPartsThatFit) {
  const auto room = SwapRoom::make(640);
  Part parts[] = {room->take(128), room->take(256), room->take(256)};
  std::byte* const gap = parts[1]->bytes().data();
  parts[1].reset();
  EXPECT_FALSE(room->take(320).has_value());
  const Part filled = room->take(200);
  ASSERT_TRUE(filled.has_value());
  EXPECT_EQ(filled->bytes().data(), gap);
  EXPECT_LE(filled->bytes().data() + filled->bytes().size(), parts[2]->bytes().data());
}

TEST(SwapRoom, GivesNoneIfItHasNoBytes) {
  EXPECT_FALSE(SwapRoom::make(0)->take(1).has_value());
}

TEST(SwapRoom, LivesAsLongAsItsParts) {
  auto room = SwapRoom::make(128);
  Part part = room->take(64);
  room.reset();
  part->bytes()[63] = std::byte{1};
  const Part moved = std::move(part);
  EXPECT_EQ(moved->bytes()[63], std::byte{1});
}

TEST(SwapRoom, IsForCachesWhoseSequencesCanBeCompressed) {
  KvArenaShape shape;
  EXPECT_EQ(swap_room_bytes(shape), 0);
}

}  // namespace
}  // namespace tessera
