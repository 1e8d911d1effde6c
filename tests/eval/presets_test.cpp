#include "eval/run/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/command_line.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(const std::string& list) {
  std::vector<std::string> out;
  const auto presets = find_eval_presets(list);
  EXPECT_TRUE(presets.ok()) << presets.status();
  for (const EvalPreset& preset : *presets) out.emplace_back(preset.name);
  return out;
}

TEST(KvPresets, PutTheReferenceFirstAndEachOnce) {
  EXPECT_THAT(names("f32"), ElementsAre("f16", "f32"));
  EXPECT_THAT(names("f32,f16,f32"), ElementsAre("f16", "f32"));
}

TEST(KvPresets, HaveF32AsAReferenceThoughNoServerHasIt) {
  const auto presets = find_eval_presets("f32");
  ASSERT_TRUE(presets.ok()) << presets.status();
  EXPECT_EQ(presets->back().policy.high, kKvF32);
}

TEST(KvPresets, RefuseAnUnknownOneAndListTheKnown) {
  const auto refused = find_eval_presets("f16,k9v9");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("'k9v9'"), HasSubstr("leankv, mustafar-70")));
}

absl::Status refusal(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tessera-eval");
  return parse_eval_command(static_cast<int>(arguments.size()), arguments.data()).status();
}

TEST(EvalCommandLine, RefusesByName) {
  EXPECT_THAT(std::string(refusal({}).message()), HasSubstr("--model"));
  EXPECT_THAT(std::string(refusal({"--model", "m", "--device", "tpu"}).message()),
              HasSubstr("'tpu'"));
  EXPECT_THAT(std::string(refusal({"--model", "m", "--weights", "f8"}).message()),
              HasSubstr("--weights"));
  EXPECT_THAT(std::string(refusal({"--model", "m", "--samples", "0"}).message()),
              HasSubstr("--samples"));
}

TEST(EvalCommandLine, ReadsWhatItIsGiven) {
  const char* const arguments[] = {"tessera-eval", "--model",       "m",      "--kv",   "f32",
                                   "--tasks",      "quick,a.jsonl", "--seed", "5",      "--lengths",
                                   "128,256",      "--weights",     "int8",   "--html", "r.html"};
  const auto command = parse_eval_command(std::size(arguments), arguments);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->options.tasks.tasks, "quick,a.jsonl");
  EXPECT_EQ(command->options.tasks.seed, 5u);
  EXPECT_THAT(command->options.tasks.lengths, ElementsAre(128, 256));
  EXPECT_EQ(command->options.weights, WeightFormat::int8);
  EXPECT_EQ(command->options.html, "r.html");
  EXPECT_FALSE(command->text.has_value());
}

TEST(EvalCommandLine, ReadsASplitAndNamesTheValuesOfAWrongOne) {
  const char* const arguments[] = {"tessera-eval", "--model", "m", "--split", "reporting"};
  const auto command = parse_eval_command(std::size(arguments), arguments);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->options.tasks.split, Split::reporting);
  EXPECT_THAT(std::string(refusal({"--model", "m", "--split", "some"}).message()),
              AllOf(HasSubstr("--split"), HasSubstr("some"), HasSubstr("tuning")));
}

TEST(EvalCommandLine, ReadsTheFormatOfResidualBuffers) {
  const char* const arguments[] = {"tessera-eval", "--model", "m", "--residual", "k8v8"};
  const auto command = parse_eval_command(std::size(arguments), arguments);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_TRUE(command->options.coded_residuals);
  EXPECT_THAT(std::string(refusal({"--model", "m", "--residual", "k4v4"}).message()),
              AllOf(HasSubstr("--residual"), HasSubstr("k8v8")));
}

TEST(KvPresets, HaveCodedResidualBuffersIfAllTheirFormatsAreOfCodes) {
  const auto presets = find_eval_presets("k8v4,leankv,replay-31,fp8,s50,snapkv");
  ASSERT_TRUE(presets.ok()) << presets.status();
  std::vector<std::string> coded;
  for (const EvalPreset& preset : *presets) {
    if (stores_codes(preset.policy)) coded.push_back(preset.name);
  }
  EXPECT_THAT(coded, ElementsAre("k8v4", "leankv", "replay-31"));
}

TEST(EvalCommandLine, HelpIsPrintableToItsLastOption) {
  const char* const arguments[] = {"tessera-eval", "--help"};
  const auto command = parse_eval_command(std::size(arguments), arguments);
  ASSERT_TRUE(command.ok() && command->text.has_value());
  EXPECT_EQ(command->text->find('\0'), std::string::npos);
  EXPECT_THAT(*command->text, AllOf(HasSubstr("--split"), HasSubstr("--resume")));
}

}  // namespace
}  // namespace tessera
