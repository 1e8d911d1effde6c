#include "files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "kernels/matrix/half.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

class SafetensorsFileTest : public testing::Test {
 protected:
  absl::StatusOr<SafetensorsFile> open(const std::string& bytes) {
    write_file(path_, bytes);
    return SafetensorsFile::open(path_);
  }
  // Expects an error that names the file and contains `says`.
  void expect_refusal(const std::string& bytes, const std::string& says) {
    const auto file = open(bytes);
    ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << says;
    EXPECT_THAT(std::string(file.status().message()),
                AllOf(HasSubstr(path_.string()), HasSubstr(says)));
  }

  TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_ / "model.safetensors";
};

const char kGood[] =
    R"({"__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}})";

TEST_F(SafetensorsFileTest, FindsTensorsByName) {
  const auto file = open(file_of(kGood, std::string(22, '\0')));
  ASSERT_TRUE(file.ok()) << file.status();
  const StoredTensor* a = file->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, TensorType::f32);
  EXPECT_THAT(a->shape, ElementsAre(2, 2));
  EXPECT_EQ(a->bytes.size(), 16u);
  EXPECT_EQ(file->find("b")->bytes.data(), a->bytes.data() + 16);
  EXPECT_EQ(file->find("c"), nullptr);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
  EXPECT_EQ(file->tensors().size(), 2u);
}

TEST_F(SafetensorsFileTest, HoldsScalarsAndEmptyTensors) {
  const auto file = open(file_of(
      R"({"empty": {"dtype": "F32", "shape": [0, 7], "data_offsets": [0, 0]},
          "scalar": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
          "tail": {"dtype": "U8", "shape": [0], "data_offsets": [8, 8]}})",
      std::string(8, '\0')));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->find("empty")->bytes.empty());
  EXPECT_EQ(file->find("scalar")->bytes.size(), 8u);
}

TEST_F(SafetensorsFileTest, ReadsElementsOfEachTypeExactlyAtAnyAlignment) {
  const std::vector<float> values = {0, -1.5f, 0x1p-20f, 3.25f, -2048};
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
    SCOPED_TRACE(name(type));
    NamedTensor odd{"a", TensorType::u8, {1}, std::vector<std::byte>(1)};
    NamedTensor tensor{"b", type, {5}, {}};
    for (const float value : values) {
      const uint32_t bits = type == TensorType::f32   ? std::bit_cast<uint32_t>(value)
                            : type == TensorType::f16 ? to_f16(value).bits
                                                      : to_bf16(value).bits;
      const auto* bytes = reinterpret_cast<const std::byte*>(&bits);
      tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + bytes_of(type));
    }
    ASSERT_TRUE(write_safetensors(path_, std::vector<NamedTensor>{odd, tensor}).ok());
    const auto file = SafetensorsFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<float> read(5);
    read_f32(*file->find("b"), 0, read);
    EXPECT_EQ(read, values);
    read.resize(2);
    read_f32(*file->find("b"), 3, read);
    EXPECT_THAT(read, ElementsAre(3.25f, -2048));
  }
}

TEST_F(SafetensorsFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(SafetensorsFile::open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::open(directory_.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsFileTest, RefusesEveryTruncation) {
  const std::string whole = file_of(kGood, std::string(22, '\0'));
  for (size_t length = 0; length < whole.size(); ++length) {
    SCOPED_TRACE(length);
    expect_refusal(whole.substr(0, length), "");
  }
  ASSERT_TRUE(open(whole).ok());
}

TEST_F(SafetensorsFileTest, RefusesAHeaderLengthBeyondTheFile) {
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{1} << 31, uint64_t{1} << 63, std::numeric_limits<uint64_t>::max(),
        std::numeric_limits<uint64_t>::max() - 7}) {
    expect_refusal(std::string(reinterpret_cast<const char*>(&length), sizeof(length)),
                   std::to_string(length));
  }
}

TEST_F(SafetensorsFileTest, RefusesAHeaderThatIsNoObject) {
  expect_refusal(file_of("", ""), "header");
  expect_refusal(file_of("[]", ""), "header");
  expect_refusal(file_of("{\"a\": ", ""), "header");
  expect_refusal(file_of("{\"a\xff\": 1}", ""), "header");
  expect_refusal(file_of(std::string(1'000'000, '['), ""), "nested");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_refusal(file_of(objects, ""), "nested");
}

TEST_F(SafetensorsFileTest, RefusesATensorThatIsNamedTwice) {
  expect_refusal(file_of(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                             "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
                         "xx"),
                 "\"a\" appears twice");
}

TEST_F(SafetensorsFileTest, RefusesATensorThatOverlapsAnother) {
  expect_refusal(file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                             "b": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})",
                         "1234567"),
                 "overlaps");
  expect_refusal(file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                             "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})",
                         "1234"),
                 "overlaps");
}

TEST_F(SafetensorsFileTest, RefusesBytesThatBelongToNoTensor) {
  expect_refusal(
      file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}})", "12345"), "gap");
  expect_refusal(
      file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", "12345"),
      "end at 4");
  expect_refusal(file_of("{}", "1"), "end at 0");
}

// Returns: a file with one tensor described by `entry`, over eight bytes of data.
std::string one_tensor(const std::string& entry) {
  return file_of("{\"a\": " + entry + "}", "12345678");
}

TEST_F(SafetensorsFileTest, RefusesDamagedEntriesAndNamesTheField) {
  ASSERT_TRUE(open(one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})")).ok());
  const std::pair<const char*, const char*> damaged[] = {
      {R"(3)", "object"},
      {R"([])", "object"},
      {R"({"shape":[2],"data_offsets":[0,8]})", "dtype"},
      {R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})", "dtype"},
      {R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", "F33"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})", "shape"},
      {R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})", "too large"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", "too large"},
      {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "[3] takes 12"},
      {R"({"dtype":"F32","shape":[2]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":8})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8.0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})", "truncated"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]})", "truncated"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})", "2^63"},
  };
  for (const auto& [entry, says] : damaged) {
    SCOPED_TRACE(entry);
    expect_refusal(one_tensor(entry), says);
    expect_refusal(one_tensor(entry), "tensor \"a\"");
  }
}

TEST_F(SafetensorsFileTest, EscapesANameInItsMessage) {
  expect_refusal(file_of("{\"a\\n\\u0007" + std::string(1000, 'b') + "\": 1}", ""), "a\\n\\007bbb");
  EXPECT_LT(SafetensorsFile::open(path_).status().message().size(), 500u);
}

}  // namespace
}  // namespace tessera
