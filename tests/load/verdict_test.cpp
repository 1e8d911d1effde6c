#include "load/check/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::load {
namespace {

using testing::HasSubstr;

Answer answer_of(const std::string& text) {
  Answer answer;
  answer.text = text;
  answer.finish_reason = "length";
  answer.usage = ReportedUsage{.prompt_tokens = 9, .completion_tokens = 4, .total_tokens = 13};
  return answer;
}

LoadRequest planted(const std::string& key) {
  LoadRequest request;
  request.session = 5;
  request.max_tokens = 4;
  request.expected.kind = Expectation::Kind::contains;
  request.expected.text = key;
  return request;
}

TEST(Judge, FindsThePlantedKey) {
  EXPECT_EQ(judge(planted("48213"), answer_of("It is 48213."), {}).verdict, Verdict::correct);
  EXPECT_EQ(judge(planted("48213"), answer_of("It is 48214."), {}).verdict, Verdict::missed);
}

TEST(Judge, NamesTheSessionWhoseKeyCame) {
  RecentKeys keys;
  keys.add("90177", 3);
  const Judgement judgement = judge(planted("48213"), answer_of("It is 90177."), keys);
  EXPECT_THAT(judgement.why, HasSubstr("session 3"));
}

TEST(RecentKeys, ForgetTheOldest) {
  RecentKeys keys;
  for (uint64_t i = 0; i < 1000; ++i) keys.add(std::to_string(10000 + i), i);
  EXPECT_FALSE(keys.owner_of_other_key("10000", 1));
  EXPECT_EQ(keys.owner_of_other_key("x10999y", 1), 999u);
  EXPECT_FALSE(keys.owner_of_other_key("10999", 999));
}

TEST(Judge, ADifferenceIsWrongOnlyWhereEqualityIsPromised) {
  LoadRequest request;
  request.expected.kind = Expectation::Kind::equals;
  request.expected.text = "once upon";
  EXPECT_EQ(judge(request, answer_of("once upon"), {}).verdict, Verdict::correct);
  const Judgement wrong = judge(request, answer_of("once open"), {});
  EXPECT_EQ(wrong.verdict, Verdict::wrong);
  EXPECT_THAT(wrong.why, HasSubstr("byte 5"));
  request.expected.strict = false;
  EXPECT_EQ(judge(request, answer_of("once open"), {}).verdict, Verdict::differs);
}

TEST(Judge, UsageMustAgreeWithWhatCame) {
  const LoadRequest request = planted("1");
  const auto why = [&](auto change) {
    Answer answer = answer_of("1");
    change(answer);
    const Judgement judgement = judge(request, answer, {});
    EXPECT_EQ(judgement.verdict, judgement.why.empty() ? Verdict::correct : Verdict::wrong);
    return judgement.why;
  };
  EXPECT_EQ(why([](Answer&) {}), "");
  EXPECT_THAT(why([](Answer& a) { a.usage.reset(); }), HasSubstr("no usage"));
  EXPECT_THAT(why([](Answer& a) { a.usage->total_tokens = 12; }), HasSubstr("are not 12"));
  EXPECT_THAT(why([](Answer& a) { a.usage->cached_tokens = 10; }), HasSubstr("10 of 9"));
  EXPECT_THAT(why([](Answer& a) { a.counted_tokens = 3; }), HasSubstr("but 3 came"));
  EXPECT_THAT(why([](Answer& a) { a.counted_tokens = 5; }), HasSubstr("but 5 came"));
  EXPECT_THAT(why([](Answer& a) { a.finish_reason.clear(); }), HasSubstr("finish_reason"));
  // A stop token may be counted without being sent.
  EXPECT_EQ(why([](Answer& a) { a.counted_tokens = 3, a.finish_reason = "stop"; }), "");
}

TEST(Judge, PromptTokensMustBeThoseOfTheIdleServer) {
  LoadRequest request;
  request.expected.prompt_tokens = 8;
  EXPECT_THAT(judge(request, answer_of(""), {}).why, HasSubstr("while idle 8"));
}

TEST(Judge, AllTokensAskedForMustCome) {
  LoadRequest request;
  request.ignore_eos = true;
  request.max_tokens = 5;
  EXPECT_THAT(judge(request, answer_of("a"), {}).why, HasSubstr("4 completion tokens of 5"));
}

}  // namespace
}  // namespace tessera::load
