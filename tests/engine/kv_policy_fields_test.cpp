#include "engine/kv/kv_policy_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv/kv_presets.h"
#include "engine/kv/kv_shareable.h"
#include "engine/kv/kv_successors.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

std::string refusal(std::string_view text) {
  const auto policy = parse_policy(text);
  EXPECT_FALSE(policy.ok()) << text;
  return std::string(policy.status().message());
}

TEST(KvPresets, AreValidAndStandOnceEach) {
  for (const KvPreset& preset : kv_choices()) {
    EXPECT_EQ(policy_error(preset.policy), "") << preset.name;
    EXPECT_EQ(find_kv_preset(preset.name), preset) << preset.name << " stands twice";
  }
  EXPECT_EQ(find_kv_preset("leankv2"), std::nullopt);
}

TEST(KvPresets, AreNoFormats) {
  EXPECT_EQ(find_kv_preset("k4v8"), uniform_kv(kKvK4V8));
  for (const KvPreset& preset : kv_presets()) {
    EXPECT_FALSE(kv_format_named(preset.name).has_value()) << preset.name;
  }
}

TEST(KvPolicyFields, EveryPresetIsItselfByName) {
  for (const KvPreset& preset : kv_presets()) {
    const auto policy = parse_policy(preset.name);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(*policy, preset.policy) << preset.name;
  }
}

TEST(KvPolicyFields, EveryPresetIsReadBackFromItsFields) {
  for (const KvPreset& preset : kv_presets()) {
    const auto policy = edit_policy(preset.policy, policy_fields(preset.policy));
    ASSERT_TRUE(policy.ok()) << preset.name << policy.status();
    EXPECT_EQ(*policy, preset.policy) << preset.name;
  }
}

TEST(KvPolicyFields, AFormatIsAPolicyThatKeepsEverythingInIt) {
  const auto policy = parse_policy("k2v4");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->high, kKvK2V4);
  EXPECT_EQ(policy->low, kKvK2V4);
  EXPECT_FALSE(policy->is_lossy());
}

TEST(KvPolicyFields, SayWhichShareIsRead) {
  const auto policy = parse_policy("f16:read_share=0.125:read_tokens=1024");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_THAT(policy_fields(*policy),
              AllOf(Contains(Pair("read_share", KvFieldValue(0.125F))),
                    Contains(Pair("read_tokens", KvFieldValue(int64_t{1024})))));
  EXPECT_EQ(policy->read_tiles(64 * 100 + 63), 16) << "at least 1024 tokens";
  EXPECT_EQ(policy->read_tiles(64 * 201), 26) << "an eighth, rounded up";
  EXPECT_EQ(parse_policy("f16:read_share=0.125:read_tokens=300")->read_tiles(64 * 10), 5);
  EXPECT_EQ(parse_policy("f16")->read_tiles(64 * 201), 0) << "everything";
  EXPECT_THAT(policy_fields(*parse_policy("f16")), Not(Contains(Pair("read_share", testing::_))));
  for (const char* text : {"f16:read_share=0", "f16:read_share=1.5", "f16:read_tokens=255"}) {
    EXPECT_FALSE(parse_policy(text).ok()) << text;
  }
  for (const char* text : {"snapkv:read_share=0.5", "replay-50:read_share=0.5",
                           "k8v4-quest:keep_tokens=512:scorer=sum"}) {
    EXPECT_THAT(refusal(text), testing::HasSubstr("read_share")) << text;
  }
  EXPECT_FALSE(parse_format("k8v4-quest").ok());
}

TEST(KvPolicyFields, SayHowSparseFormatsKeepTheirNewestTokensAndChooseKeys) {
  const auto uniform = parse_policy("s60-k4v4:newest=64");
  ASSERT_TRUE(uniform.ok()) << uniform.status();
  EXPECT_EQ(uniform->newest_dense(), 64);
  EXPECT_THAT(policy_fields(*uniform), Contains(Pair("newest", KvFieldValue(int64_t{64}))));
  const auto pruned = parse_policy("mustafar-70:key_score=output_aware:low=s60-k4v4");
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_EQ(pruned->key_score, KvKeyScore::output_aware);
  EXPECT_THAT(policy_fields(*pruned),
              AllOf(Contains(Pair("key_score", KvFieldValue(std::string("output_aware")))),
                    Not(Contains(Pair("newest", testing::_)))));
  for (const char* refused : {"s60:newest=65", "s60:newest=-1", "s60:key_score=output_aware",
                              "leankv:key_score=output_aware", "mustafar-70:key_score=entropy"}) {
    EXPECT_FALSE(parse_policy(refused).ok()) << refused;
  }
}

TEST(KvPolicyFields, AFieldChoosesItsRuleAndABudgetReplacesTheOthers) {
  const auto policy = parse_policy(
      "kv-compress:allocator=uniform:keep_tokens=200:sinks=2:high=k8v4:low=k4v2:high_share=0.5");
  ASSERT_TRUE(policy.ok()) << policy.status();
  ASSERT_TRUE(policy->keep.is<KeepBudget>());
  EXPECT_EQ(policy->budget().amount, KvAmount::of_tokens(200));
  EXPECT_EQ(policy->sinks, 2);
  EXPECT_EQ(policy->high, kKvK8V4);
  const auto mass = parse_policy("leankv:mass_high=0.9:mass_keep=0.99");
  ASSERT_TRUE(mass.ok()) << mass.status();
  EXPECT_EQ(mass->rule(), KvRule::mass);
  EXPECT_THAT(policy_fields(*mass), AllOf(Contains(Pair("mass_keep", KvFieldValue(0.99F))),
                                          Not(Contains(Pair("alpha_high", testing::_)))));
}

TEST(KvPolicyFields, TakeNumbersAsNumbersAndRefuseThoseOfAnotherType) {
  const KvPolicy base = parse_policy("leankv").value();
  const auto edited = [&](const char* name, KvFieldValue value) {
    const KvPolicyFields fields = {{name, std::move(value)}};
    return edit_policy(base, fields);
  };
  EXPECT_EQ(edited("sinks", int64_t{3})->sinks, 3);
  EXPECT_EQ(edited("sinks", std::string("3"))->sinks, 3) << "as on a command line";
  EXPECT_EQ(edited("alpha_high", 2.5F).value(), parse_policy("leankv:alpha_high=2.5").value());
  EXPECT_EQ(edited("alpha_high", int64_t{2}).value(), parse_policy("leankv:alpha_high=2").value());
  EXPECT_THAT(edited("sinks", 2.5F).status().message(), HasSubstr("sinks cannot be '2.5'"));
  EXPECT_THAT(edited("sinks", int64_t{1} << 40).status().message(), HasSubstr("1099511627776"));
  EXPECT_THAT(edited("sinks", true).status().message(), HasSubstr("sinks cannot be 'true'"));
  EXPECT_THAT(edited("high", int64_t{8}).status().message(), HasSubstr("high cannot be '8'"));
  EXPECT_THAT(edited("compress_generated", int64_t{1}).status().message(), HasSubstr("cannot"));
}

TEST(KvPolicyFields, RefusesByName) {
  EXPECT_THAT(refusal("lean"), AllOf(HasSubstr("'lean'"), HasSubstr("leankv, mustafar-70")));
  EXPECT_THAT(refusal("leankv:alfa=1"), AllOf(HasSubstr("'alfa'"), HasSubstr("alpha_high")));
  EXPECT_THAT(refusal("leankv:sinks"), HasSubstr("'sinks'"));
  EXPECT_THAT(refusal("leankv:sinks=many"), HasSubstr("sinks cannot be 'many'"));
  EXPECT_THAT(refusal("leankv:sinks=1:sinks=2"), HasSubstr("sinks is given twice"));
  EXPECT_THAT(refusal("leankv:alpha_high=1:keep_share=0.5"),
              AllOf(HasSubstr("keep_share"), HasSubstr("alpha_high")));
  EXPECT_THAT(refusal("leankv:mass_keep=1.5"), HasSubstr("mass_keep"));
  EXPECT_EQ(refusal("snapkv:newest=16"),
            "newest belongs to the rule keep_all, but the policy to budget: choose one");
  EXPECT_EQ(refusal("k8v4-quest:keep_tokens=512"),
            "keep_tokens belongs to the rule budget, but read_share to keep_all: choose one");
  EXPECT_THAT(refusal("leankv:high=k9v9"), HasSubstr("high cannot be 'k9v9'"));
}

TEST(KvPolicyFields, NameTheSuccessorOfAChoiceThatIsNoLongerServed) {
  EXPECT_EQ(refusal("h2o"), "'h2o' is no longer served: take kv-compress");
  EXPECT_EQ(refusal("adakv:keep_tokens=100"), "'adakv' is no longer served: take snapkv");
  EXPECT_EQ(refusal("f32"), "'f32' is no longer served: take f16");
  EXPECT_EQ(refusal("leankv:high=k8v2"), "'k8v2' is no longer served: take k6v4r, or k4v4 on CUDA");
  EXPECT_THAT(refusal("snapkv:head_floor=0.2"), HasSubstr("'head_floor' is no longer served"));
  EXPECT_THAT(refusal("snapkv:scorer=keyformer"), HasSubstr("'scorer=keyformer' is no longer"));
  EXPECT_FALSE(parse_format("s50-k8v8").ok());
}

TEST(KvPolicyFields, HaveSuccessorsThatAreServed) {
  for (const char* const name :
       {"leankv-aggressive", "mustafar-50",  "h2o",        "scissorhands", "a2sf",
        "keyformer",         "lazyeviction", "pyramidkv",  "adakv",        "zigzagkv",
        "windowkv",          "kvcrush",      "compresskv", "duoattention", "razorattention",
        "kvzip-50",          "kvzip-25",     "replay-37",  "replay-25",    "k8v2",
        "s50-k8v8",          "s50-k8v4",     "s70-k8v8",   "s70-k8v4"}) {
    const std::string successor(kv_successor(name).value_or("none"));
    const auto policy = parse_policy(successor.substr(0, successor.find(',')));
    EXPECT_TRUE(policy.ok()) << name << ": " << policy.status();
  }
}

TEST(ShareableTokens, LeaveTheQueriesThatAreSummedToTheSequence) {
  const auto policy = parse_policy("mustafar-70:key_score=output_aware");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(shareable_tokens(*policy, 200), 128);
  EXPECT_EQ(shareable_tokens(*policy, 63), 0);
}

}  // namespace
}  // namespace tessera
