#include "server/generation/prefix_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

using testing::HasSubstr;

std::string file_of(int32_t first_block, const std::vector<std::byte>& records) {
  PrefixFilePart part{.fingerprint = {},
                      .first_block = first_block,
                      .blocks = 2,
                      .block_tokens = 4,
                      .root_level = 3,
                      .salt = "salt",
                      .tokens = {},
                      .records = records};
  part.fingerprint.bytes.fill(std::byte{7});
  for (int32_t i = 0; i < (first_block + 2) * 4; ++i) {
    part.tokens.push_back(100 + i);
  }
  std::string file;
  print_prefix_part(part, file);
  return file;
}

TEST(PrefixFile, GivesBackItsPartsInOrder) {
  const std::vector<std::byte> records(100, std::byte{9});
  const std::string file = file_of(0, records) + file_of(2, {});
  std::string_view rest = file;
  const PrefixFilePart first = take_prefix_part(rest).value();
  EXPECT_EQ(first.first_block, 0);
  EXPECT_EQ(first.blocks, 2);
  EXPECT_EQ(first.block_tokens, 4);
  EXPECT_EQ(first.root_level, 3);
  EXPECT_EQ(first.salt, "salt");
  EXPECT_EQ(first.tokens.size(), 8u);
  EXPECT_EQ(first.tokens.back(), 107);
  EXPECT_EQ(first.fingerprint.bytes.back(), std::byte{7});
  EXPECT_TRUE(
      std::equal(records.begin(), records.end(), first.records.begin(), first.records.end()));
  const PrefixFilePart second = take_prefix_part(rest).value();
  EXPECT_EQ(second.first_block, 2);
  EXPECT_EQ(second.tokens.size(), 16u);
  EXPECT_TRUE(rest.empty());
}

TEST(PrefixFile, IsRefusedWhereverItIsCutOrDamaged) {
  const std::string file = file_of(1, std::vector<std::byte>(50, std::byte{1}));
  for (size_t i = 0; i < file.size(); ++i) {
    std::string_view cut = std::string_view(file).substr(0, i);
    EXPECT_EQ(take_prefix_part(cut).status().code(), absl::StatusCode::kInvalidArgument) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      std::string_view rest = damaged;
      const absl::Status status = take_prefix_part(rest).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i;
      EXPECT_THAT(std::string(status.message()), HasSubstr("file")) << i;
      EXPECT_EQ(rest.size(), damaged.size());
    }
  }
}

}  // namespace
}  // namespace tessera
