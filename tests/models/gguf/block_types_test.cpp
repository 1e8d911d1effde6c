// Each GGUF tensor type alone, bit for bit as PyPI's gguf decodes it (types_golden.py).

#include "files/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "files/stored_tensor.h"
#include "nlohmann/json.hpp"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

const std::filesystem::path kGolden =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/gguf_types.json";

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

struct Golden {
  TensorType type;
  std::vector<std::byte> blocks;
  std::vector<float> values;

  StoredTensor tensor() const { return {type, {static_cast<int64_t>(values.size())}, blocks}; }
};

std::vector<Golden> read_golden() {
  std::vector<Golden> all;
  const auto file = nlohmann::json::parse(read_file(kGolden));
  for (int i = 0; i <= static_cast<int>(TensorType::q6_k); ++i) {
    const auto type = static_cast<TensorType>(i);
    if (!is_readable(type)) continue;
    const auto& entry = file.at(std::string(name(type)));
    Golden& golden = all.emplace_back();
    golden.type = type;
    golden.blocks = bytes_of_hex(entry.at("blocks"));
    const std::vector<std::byte> bits = bytes_of_hex(entry.at("values"));
    golden.values.resize(bits.size() / sizeof(float));
    std::memcpy(golden.values.data(), bits.data(), bits.size());
  }
  return all;
}

void expect_same_bits(std::span<const float> found, std::span<const float> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
        << "value " << i << ": " << found[i] << ", expected " << expected[i];
  }
}

TEST(GgufTypes, DecodeToTheBitsOfTheReference) {
  for (const Golden& golden : read_golden()) {
    SCOPED_TRACE(name(golden.type));
    ASSERT_EQ(std::ssize(golden.blocks) / block_bytes(golden.type) * block_values(golden.type),
              std::ssize(golden.values));
    std::vector<float> found(golden.values.size());
    read_f32(golden.tensor(), 0, found);
    expect_same_bits(found, golden.values);
  }
}

TEST(GgufTypes, AreReadFromAnyElementOn) {
  for (const Golden& golden : read_golden()) {
    SCOPED_TRACE(name(golden.type));
    const std::span<const float> all = golden.values;
    for (size_t first = 0; first < all.size(); first += 7) {
      for (const size_t count : {size_t{1}, size_t{31}, size_t{300}}) {
        std::vector<float> found(std::min(count, all.size() - first));
        read_f32(golden.tensor(), static_cast<int64_t>(first), found);
        expect_same_bits(found, all.subspan(first, found.size()));
      }
    }
  }
}

TEST(GgufTypes, RowsOfInterleavedHeadsComeInTheTensorsOrder) {
  // Two heads of four rows. The file pairs rows 0 and 2, and rows 1 and 3, of each head.
  const std::vector<float> stored = {0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7};
  const StoredTensor tensor{TensorType::f32, {8, 2}, std::as_bytes(std::span(stored)), 4};
  std::vector<float> found(16);
  read_f32(tensor, 0, found);
  EXPECT_EQ(found, (std::vector<float>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
  found.resize(3);
  read_f32(tensor, 3, found);
  EXPECT_EQ(found, (std::vector<float>{1, 2, 2}));
}

TEST(GgufTypes, RowsOfBlocksComeInTheTensorsOrderToo) {
  for (const Golden& golden : read_golden()) {
    const int64_t cols = block_values(golden.type);
    if (!is_quantized(golden.type)) continue;
    SCOPED_TRACE(name(golden.type));
    StoredTensor tensor = golden.tensor();
    tensor.shape = {4, cols};
    tensor.interleaved_rows = 4;
    std::vector<float> found(static_cast<size_t>(4 * cols));
    read_f32(tensor, 0, found);
    const std::span<const float> stored = golden.values;
    for (const size_t row : {0, 1, 2, 3}) {
      const auto width = static_cast<size_t>(cols);
      const size_t from = row == 1 ? 2 : row == 2 ? 1 : row;
      expect_same_bits(std::span(found).subspan(row * width, width),
                       stored.subspan(from * width, width));
    }
  }
}

}  // namespace
}  // namespace tessera
