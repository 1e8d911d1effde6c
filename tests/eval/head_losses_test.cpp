// Profiles of KV heads, measured on the shipped model.
#include "eval/head_losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/kv/kv_presets.h"
#include "eval/run/evaluation.h"
#include "eval/score/item_scores.h"
#include "eval/tasks/profile.h"
#include "tests/eval/shipped_model.h"

namespace tessera {
namespace {

class ProfiledHeads : public ShippedModel {
 protected:
  static std::vector<Task> tasks(Split split, int32_t length) {
    auto made = make_tasks({.tasks = "materials-later",
                            .lengths = {length},
                            .samples = 2,
                            .questions = 4,
                            .split = split},
                           *tokenizer, 640);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  static absl::StatusOr<HeadLosses> measure(const std::vector<Task>& tasks) {
    auto journal = Journal::open("", "");
    return measure_head_losses(
        *host, *tokenizer, tasks, [](std::string_view, std::string_view, int64_t) {}, *journal);
  }

  // Returns: the divergence of `policy` with these profiles from f16, in nats.
  static double divergence_of(const KvPolicy& policy, std::vector<HeadProfile> profiles,
                              const Task& task) {
    std::vector<std::unique_ptr<Subject>> subjects;
    subjects.push_back(host->subject({"f16", kKvPresetF16.policy}, *tokenizer).value());
    subjects.push_back(host->subject({"own", policy, std::move(profiles)}, *tokenizer).value());
    EvaluationOptions options;
    options.vocab = host->config().vocab;
    auto journal = Journal::open("", "");
    const TaskResults results = evaluate(task, subjects, options, *journal).value();
    Ratio sum;
    for (size_t item = 0; item < task.items.size(); ++item) {
      sum.add(divergence(task.items[item], results.results[1][item], Phase::acted));
    }
    return sum.value();
  }
};

TEST_F(ProfiledHeads, KeepTheirTokensWhereTheModelNeedsThem) {
  const auto losses = measure(tasks(Split::tuning, 384));
  ASSERT_TRUE(losses.ok()) << losses.status();
  ASSERT_EQ(std::ssize(losses->losses), 12);
  KvPolicy policy = find_kv_preset("retrieval-50")->policy;
  policy.budget().amount = KvAmount::of_tokens(128);
  std::vector<float> reversed;
  for (const float loss : losses->losses) {
    reversed.push_back(1.0f / (1e-6f + loss));
  }
  const std::vector<Task> unseen = tasks(Split::reporting, 384);
  const double measured = divergence_of(policy, head_profiles(losses->losses), unseen[0]);
  const double wrong = divergence_of(policy, head_profiles(reversed), unseen[0]);
  EXPECT_LT(measured * 2, wrong) << "the same number of tokens in the other rows";
}

TEST_F(ProfiledHeads, AreNotMeasuredWhereNothingIsDropped) {
  const auto refused = measure(tasks(Split::tuning, 100));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("more than 128 tokens"));
}

}  // namespace
}  // namespace tessera
