// Forks against the engine: the same model, policy and tokens, but the engine computes each
// question behind a prompt of its own, one token at a time.
#include "eval/run/forked_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "eval/run/evaluation.h"
#include "eval/score/scoring.h"
#include "eval/tasks/documents.h"
#include "tests/eval/shipped_model.h"

namespace tessera {
namespace {

class Forks : public ShippedModel {
 protected:
  static std::unique_ptr<Subject> subject(const std::string& name) {
    const auto presets = find_eval_presets(name);
    auto subject = host->subject(presets->back(), *tokenizer);
    EXPECT_TRUE(subject.ok()) << subject.status();
    return *std::move(subject);
  }

  static std::vector<TrialResult> run(Subject& subject, const std::vector<Trial>& trials) {
    std::vector<TrialResult> results(trials.size());
    std::vector<Job> jobs;
    for (size_t i = 0; i < trials.size(); ++i) {
      jobs.push_back({.trial = &trials[i], .result = &results[i], .measure_kv = true});
    }
    int done = 0;
    EXPECT_TRUE(subject.run(jobs, [&done] { ++done; }).ok());
    EXPECT_EQ(done, static_cast<int>(trials.size()));
    return results;
  }

  static Task documents(Asked asked, int32_t contexts, int32_t questions) {
    return make_documents(document_kinds()[3], asked, {{384}, contexts, questions}, *tokenizer,
                          Material(7));
  }
};

constexpr const char* kPresets[] = {
    "f16",
    "k4v2",
    "leankv",
    "snapkv:keep_share=0.3",
    "kv-compress:allocator=uniform:scorer=sum:score_window=0:score_pool=1",
    "streaming:keep_share=0.3",
    "replay-50:scorer=replay:section=128"};

TEST_F(Forks, AnswerAsTheEngineDoes) {
  // Five questions in forks of three at once.
  const std::vector<Trial> forks = documents(Asked::later, 1, 5).items[0].trials;
  std::vector<Trial> alone = forks;
  for (Trial& trial : alone) {
    trial.asked = trial.turns[0].asked;
    trial.turns.clear();
  }
  for (const char* const preset : kPresets) {
    SCOPED_TRACE(preset);
    const std::unique_ptr<Subject> own = subject(preset);
    const std::vector<TrialResult> forked = run(*own, forks);
    const std::vector<TrialResult> engine = run(*own, alone);
    for (size_t i = 0; i < forks.size(); ++i) {
      ASSERT_EQ(forked[i].logprobs.size(), engine[i].logprobs.size());
      for (size_t t = 0; t < forked[i].logprobs.size(); ++t) {
        EXPECT_NEAR(forked[i].logprobs[t], engine[i].logprobs[t], 1e-3) << i << " " << t;
      }
      EXPECT_EQ(forked[i].acted_from, engine[i].acted_from);
    }
  }
}

TEST_F(Forks, DoNotSeeEachOther) {
  const std::vector<Trial> forks = documents(Asked::later, 1, 5).items[0].trials;
  for (const char* const preset : kPresets) {
    SCOPED_TRACE(preset);
    const std::unique_ptr<Subject> own = subject(preset);
    const std::vector<TrialResult> together = run(*own, forks);
    const std::vector<TrialResult> alone = run(*own, {forks[4]});
    EXPECT_EQ(together[4].logprobs, alone[0].logprobs);
    EXPECT_EQ(together[4].kv->bytes, alone[0].kv->bytes);
  }
}

TEST_F(Forks, ContinueOneSequenceInEveryTurn) {
  // A turn reads all before it, as one long prompt does. Sections depend on the tokens up to their
  // ends alone, so this holds for them too, also for those that a turn closes.
  const Task turns = documents(Asked::turns, 1, 4);
  const Trial& trial = turns.items[0].trials[0];
  ASSERT_NE(trial.prompt.size() / 64, trial.tokens() / 64);
  Trial last = trial;
  const auto answered = static_cast<size_t>(trial.turns.back().answered);
  last.prompt.insert(last.prompt.end(), trial.forced.begin(),
                     trial.forced.end() - static_cast<std::ptrdiff_t>(answered));
  last.forced.erase(last.forced.begin(), last.forced.end() - static_cast<std::ptrdiff_t>(answered));
  last.turns = {{0, trial.turns.back().answered}};
  for (const char* const preset :
       {"f16", "replay-50:scorer=replay:section=64", "replay-50:section=64"}) {
    SCOPED_TRACE(preset);
    const std::unique_ptr<Subject> own = subject(preset);
    const TrialResult in_turns = run(*own, {trial})[0];
    const TrialResult alone = run(*own, {last})[0];
    ASSERT_EQ(alone.logprobs.size(), answered);
    for (size_t t = 0; t < answered; ++t) {
      const float there = in_turns.logprobs[in_turns.logprobs.size() - answered + t];
      EXPECT_NEAR(alone.logprobs[t], there, 1e-3);
    }
    EXPECT_EQ(alone.kv->bytes, in_turns.kv->bytes);
  }
}

TEST_F(Forks, ShowThatStreamingAndSnapKvAt19PercentAreNotLossless) {
  std::vector<std::unique_ptr<Subject>> subjects;
  const char* const presets = "k8v8,streaming:keep_share=0.19,snapkv:keep_share=0.19";
  const auto found = find_eval_presets(presets);
  ASSERT_TRUE(found.ok()) << found.status();
  Report report;
  for (const EvalPreset& preset : *found) {
    auto own = host->subject(preset, *tokenizer);
    ASSERT_TRUE(own.ok()) << own.status();
    report.subjects.emplace_back().name = preset.name;
    subjects.push_back(*std::move(own));
  }
  const std::vector<Task> tasks = {documents(Asked::later, 6, 6)};
  auto journal = Journal::open("", "");
  EvaluationOptions options;
  options.vocab = host->config().vocab;
  auto results = evaluate(tasks[0], subjects, options, *journal);
  ASSERT_TRUE(results.ok()) << results.status();
  report.tasks = {score_task(tasks[0], *results, 0)};
  judge_subjects(tasks, {&*results, 1}, {1, 1}, report);
  EXPECT_FALSE(report.subjects[0].judgement.has_value()) << "it is the reference";
  EXPECT_EQ(report.subjects[1].judgement->verdict, Verdict::lossless)
      << report.subjects[1].judgement->reason;
  for (const size_t dropping : {2u, 3u}) {
    const Judgement& judgement = *report.subjects[dropping].judgement;
    EXPECT_EQ(judgement.verdict, Verdict::no)
        << report.subjects[dropping].name << ": " << judgement.reason;
    EXPECT_GT(judgement.kl->low, 0.1);
  }
}

}  // namespace
}  // namespace tessera
