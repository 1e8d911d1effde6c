#include "models/checkpoint/recommended_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/gguf/gguf_bytes.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

auto near(double value) {
  return DoubleNear(value, 1e-6);
}

TEST(RecommendedSampling, IsReadFromGenerationConfig) {
  const TemporaryDirectory folder;
  write_file(folder / "generation_config.json", R"({"do_sample": true, "eos_token_id": [1, 2],
      "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1, "min_p": null})");
  EXPECT_THAT(read_recommended_sampling(folder.path()).value(),
              UnorderedElementsAre(Pair("temperature", near(0.7)), Pair("top_p", near(0.8)),
                                   Pair("top_k", 20), Pair("repetition_penalty", near(1.1))));
}

TEST(RecommendedSampling, IsNothingWithoutTheFile) {
  const TemporaryDirectory folder;
  EXPECT_THAT(read_recommended_sampling(folder.path()).value(), IsEmpty());
  write_file(folder / "generation_config.json", "{}");
  EXPECT_THAT(read_recommended_sampling(folder.path()).value(), IsEmpty());
}

TEST(RecommendedSampling, IsReadFromTheKeysOfAGgufFile) {
  const TemporaryDirectory folder;
  GgufBytes bytes;
  bytes.text("general.architecture", "llama")
      .f32("general.sampling.temp", 1)
      .number<int32_t>("general.sampling.top_k", 5, 64)
      .f32("general.sampling.top_p", 0.95f)
      .f32("general.sampling.min_p", 0.01f)
      .f32("general.sampling.penalty_repeat", 1.05f)
      .f32("general.sampling.xtc_threshold", 0.1f);
  write_file(folder / "model.gguf", bytes.file());
  EXPECT_THAT(
      read_recommended_sampling(folder / "model.gguf").value(),
      UnorderedElementsAre(Pair("temperature", 1), Pair("top_k", 64), Pair("top_p", near(0.95)),
                           Pair("min_p", near(0.01)), Pair("repetition_penalty", near(1.05))));
}

TEST(RecommendedSampling, RefusesWhatIsNoNumberByFileAndName) {
  const TemporaryDirectory folder;
  for (const auto& [text, named] :
       {std::pair(R"({"top_p": "high"})", "top_p"), std::pair("[1]", ""), std::pair("{", "")}) {
    write_file(folder / "generation_config.json", text);
    const absl::Status status = read_recommended_sampling(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("generation_config.json"), HasSubstr(named)));
  }
}

}  // namespace
}  // namespace tessera
