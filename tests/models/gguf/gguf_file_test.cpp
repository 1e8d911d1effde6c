#include "files/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files/gguf/gguf_model.h"
#include "tests/models/gguf/gguf_bytes.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GgufFileTest : public testing::Test {
 protected:
  absl::StatusOr<GgufFile> open(const std::string& bytes) {
    write_file(path_, bytes);
    return GgufFile::open(path_);
  }
  // Expects that the file is refused with a message that has the path and `text`.
  void expect_refused(const std::string& bytes, const std::string& text) {
    const auto file = open(bytes);
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_THAT(std::string(file.status().message()),
                testing::AllOf(HasSubstr(path_.string()), HasSubstr(text)));
  }

  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "model.gguf";
};

const std::string kEightFloats(32, '\0');

GgufBytes one_tensor(uint32_t version = 3) {
  GgufBytes bytes(version);
  bytes.text("general.architecture", "llama").tensor("a", {4, 2}, 0, kEightFloats);
  return bytes;
}

TEST_F(GgufFileTest, ReadsVersions2And3) {
  for (const uint32_t version : {2u, 3u}) {
    const auto file = open(one_tensor(version).file());
    ASSERT_TRUE(file.ok()) << file.status();
    const StoredTensor& tensor = file->tensors().at("a");
    EXPECT_EQ(tensor.shape, (TensorShape{2, 4}));
    EXPECT_EQ(tensor.bytes.size(), 32u);
  }
}

TEST_F(GgufFileTest, ReadsEveryTypeOfValue) {
  GgufBytes bytes;
  bytes.number<uint8_t>("u8", 0, 200).number<int8_t>("i8", 1, -100);
  bytes.number<uint16_t>("u16", 2, 60000).number<int16_t>("i16", 3, -30000);
  bytes.u32("u32", 4'000'000'000u).number<int32_t>("i32", 5, -2'000'000'000).f32("f32", 0.5f);
  bytes.flag("bool", true).text("text", "a\xC3\xA9").numbers<int32_t>("list", 5, {1, -2});
  bytes.number<uint64_t>("u64", 10, ~0ull).number<int64_t>("i64", 11, -1);
  bytes.number<double>("f64", 12, 0.25).texts("texts", {"x", ""});
  std::string nested;  // [[7]]
  put_number<uint32_t>(nested, 9);
  put_number<uint64_t>(nested, 1);
  put_number<uint32_t>(nested, 0);
  put_number<uint64_t>(nested, 1);
  nested += '\7';
  bytes.raw("nested", 9, nested);
  write_file(path_, bytes.file());
  const auto model = GgufModel::open(path_);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->fields(), (json{{"u8", 200u},
                                   {"i8", -100},
                                   {"u16", 60000u},
                                   {"i16", -30000},
                                   {"u32", 4'000'000'000u},
                                   {"i32", -2'000'000'000},
                                   {"f32", 0.5},
                                   {"bool", true},
                                   {"text", "a\xC3\xA9"},
                                   {"list", {1, -2}},
                                   {"u64", ~0ull},
                                   {"i64", -1},
                                   {"f64", 0.25},
                                   {"texts", {"x", ""}}}));
  EXPECT_EQ(*model->value("nested"), json::array({json::array({7})}));
  EXPECT_EQ(*model->value("none"), json());
}

TEST_F(GgufFileTest, RefusesEveryTruncation) {
  const std::string whole = one_tensor().file();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(open(whole.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(open(whole).ok());
}

TEST_F(GgufFileTest, RefusesOtherFilesAndVersions) {
  expect_refused("GGML", "is no GGUF file");
  expect_refused(one_tensor(1).file(), "version 1");
  expect_refused(one_tensor(4).file(), "version 4");
  expect_refused(one_tensor(0x03000000).file(), "big-endian");
}

TEST_F(GgufFileTest, RefusesCountsAndLengthsBeyondTheFile) {
  std::string bytes = one_tensor().file();
  bytes.replace(8, 8, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);  // tensors
  expect_refused(bytes, "announces");
  std::string list;
  put_number<uint32_t>(list, 10);  // u64
  put_number<uint64_t>(list, uint64_t{1} << 61);
  expect_refused(GgufBytes().raw("long", 9, list).file(), "key \"long\": a length exceeds");
  std::string text;
  put_number<uint64_t>(text, ~uint64_t{0});
  expect_refused(GgufBytes().raw("text", 8, text).file(), "key \"text\": a length exceeds");
  expect_refused(GgufBytes().raw("odd", 13, "").file(), "value type 13");
}

TEST_F(GgufFileTest, RefusesDeepNesting) {
  std::string list;
  for (int depth = 0; depth < 100'000; ++depth) {
    put_number<uint32_t>(list, 9);
    put_number<uint64_t>(list, 1);
  }
  expect_refused(GgufBytes().raw("deep", 9, list).file(), "key \"deep\": lists are nested deeper");
}

TEST_F(GgufFileTest, RefusesWhatIsThereTwice) {
  expect_refused(GgufBytes().u32("a", 1).u32("a", 1).file(), "key \"a\" is there twice");
  expect_refused(one_tensor().tensor("a", {4, 2}, 0, kEightFloats).file(), "is there twice");
}

TEST_F(GgufFileTest, RefusesTensorsWithWrongBytes) {
  const auto tensor = [](const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    return GgufBytes().tensor_at("t", extents, type, offset, kEightFloats + kEightFloats).file();
  };
  EXPECT_TRUE(open(tensor({8}, 0, 32)).ok());
  expect_refused(tensor({8}, 0, 64), "tensor \"t\": has 32 bytes from offset 64");
  expect_refused(tensor({8}, 0, 8), "alignment");
  expect_refused(tensor({8}, 0, ~uint64_t{31}), "from offset");
  expect_refused(tensor({uint64_t{1} << 62, 4}, 0, 0), "too large");
  expect_refused(tensor({~uint64_t{0}}, 0, 0), "too large");
  expect_refused(tensor({}, 0, 0), "has 0 dimensions");
  expect_refused(tensor({1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions");
  expect_refused(tensor({33}, 8, 0), "no whole blocks of 32");
  expect_refused(GgufBytes()
                     .tensor_at("a", {8}, 0, 0, kEightFloats)
                     .tensor_at("b", {8}, 0, 0, kEightFloats)
                     .file(),
                 "overlaps");
}

TEST_F(GgufFileTest, RefusesTensorTypesByName) {
  const auto tensor = [](uint32_t type) {
    return GgufBytes().tensor("t", {256}, type, std::string(512, '\0')).file();
  };
  expect_refused(tensor(10), "tensor \"t\": the type Q2_K is not supported; supported are F32");
  expect_refused(tensor(11), "Q3_K");
  expect_refused(tensor(20), "IQ4_NL");
  expect_refused(tensor(39), "MXFP4");
  expect_refused(tensor(77), "type number 77");
}

TEST_F(GgufFileTest, FollowsTheFilesAlignment) {
  GgufBytes bytes;
  bytes.align(256).tensor("a", {1}, 0, "1234").tensor("b", {1}, 0, "5678");
  const auto file = open(bytes.file());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(static_cast<char>(file->tensors().at("b").bytes[0]), '5');
  expect_refused(GgufBytes().u32("general.alignment", 24).file(), "general.alignment");
  expect_refused(GgufBytes().u32("general.alignment", 0).file(), "general.alignment");
  expect_refused(GgufBytes().text("general.alignment", "8").file(), "general.alignment");
}

class GgufModelTest : public GgufFileTest {
 protected:
  static std::string split(uint16_t number, uint16_t count, const std::string& tensor) {
    GgufBytes bytes;
    bytes.number("split.no", 2, number).number("split.count", 2, count);
    return bytes.tensor(tensor, {8}, 0, kEightFloats).file();
  }
};

TEST_F(GgufModelTest, OpensTheFilesOfASplitModel) {
  write_file(directory_ / "m-00001-of-00002.gguf", split(0, 2, "a"));
  write_file(directory_ / "m-00002-of-00002.gguf", split(1, 2, "b"));
  const auto found = find_gguf(directory_.path());
  ASSERT_TRUE(found.ok() && *found) << found.status();
  const auto model = GgufModel::open(**found);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE(model->find_tensor("a"), nullptr);
  EXPECT_NE(model->find_tensor("b"), nullptr);
  EXPECT_EQ(model->find_tensor("c"), nullptr);
}

TEST_F(GgufModelTest, GivesListsOfTextsAsViewsOfTheFile) {
  const std::filesystem::path path = directory_ / "texts.gguf";
  write_file(path, one_tensor()
                       .texts("texts", {"x", "", "a\xC3\xA9"})
                       .texts("none", {})
                       .numbers<int32_t>("no numbers", 5, {})
                       .numbers<int32_t>("numbers", 5, {1})
                       .text("text", "x")
                       .file());
  const auto model = GgufModel::open(path);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(*model->texts("texts"), testing::ElementsAre("x", "", "a\xC3\xA9"));
  const std::span<const std::byte> mapped = model->files().front().mapped().bytes();
  const auto* first = reinterpret_cast<const std::byte*>(model->texts("texts")->front().data());
  EXPECT_TRUE(first > mapped.data() && first < mapped.data() + mapped.size());
  for (const char* key : {"none", "no numbers", "missing"}) {
    EXPECT_THAT(*model->texts(key), testing::IsEmpty()) << key;
  }
  EXPECT_THAT(std::string(model->texts("numbers").status().message()),
              testing::AllOf(HasSubstr(path.string()), HasSubstr("numbers"),
                             HasSubstr("an element of another type")));
  EXPECT_THAT(std::string(model->texts("text").status().message()), HasSubstr("is no list"));
}

TEST_F(GgufModelTest, RefusesSplitFilesThatDoNotFit) {
  const auto first = directory_ / "m-00001-of-00002.gguf";
  const auto second = directory_ / "m-00002-of-00002.gguf";
  const auto message = [&](const std::filesystem::path& path) {
    return std::string(GgufModel::open(path).status().message());
  };
  write_file(first, split(0, 2, "a"));
  EXPECT_EQ(GgufModel::open(first).status().code(), absl::StatusCode::kNotFound);
  write_file(second, split(0, 2, "b"));
  EXPECT_THAT(message(first), HasSubstr("split.no"));
  write_file(second, split(1, 2, "a"));
  EXPECT_THAT(message(first), HasSubstr("an earlier file has it too"));
  write_file(second, split(1, 2, "b"));
  EXPECT_THAT(message(second), HasSubstr("name the first"));
  write_file(path_, split(0, 2, "a"));
  EXPECT_THAT(message(path_), HasSubstr("name the first"));
}

TEST_F(GgufModelTest, IsFoundByAFileOrByItsDirectory) {
  EXPECT_EQ(*find_gguf(directory_.path()), std::nullopt);
  EXPECT_EQ(*find_gguf(path_), std::nullopt);
  write_file(path_, one_tensor().file());
  EXPECT_EQ(*find_gguf(path_), path_);
  EXPECT_EQ(*find_gguf(directory_.path()), path_);
  write_file(directory_ / "other.gguf", "");
  EXPECT_THAT(std::string(find_gguf(directory_.path()).status().message()),
              HasSubstr("model.gguf, other.gguf"));
  write_file(directory_ / "config.json", "{}");
  EXPECT_EQ(*find_gguf(directory_.path()), std::nullopt);
}

}  // namespace
}  // namespace tessera
