#include "eval/score/scoring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "eval/score/evidence.h"
#include "eval/score/item_scores.h"

namespace tessera {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

const MetricReport& metric_of(const TaskReport& report, const std::string& name) {
  for (const MetricReport& metric : report.metrics) {
    if (metric.name == name) return metric;
  }
  ADD_FAILURE() << "no metric " << name;
  return report.metrics.front();
}

double value_of(const TaskReport& report, const std::string& name, size_t subject) {
  const auto& score = metric_of(report, name).subjects.at(subject);
  EXPECT_TRUE(score.has_value()) << name;
  return score ? score->value : -1;
}

TrialResult answered(std::vector<uint8_t> likeliest) {
  TrialResult result;
  result.logprobs.assign(likeliest.size(), -0.5f);
  result.likeliest = std::move(likeliest);
  return result;
}

Item question(int32_t length, double depth) {
  Item item;
  item.id = "q";
  item.trials.push_back({.prompt = {1}, .forced = {2, 3}});
  item.length = length;
  item.depth = depth;
  return item;
}

TEST(Scoring, TakesPerplexityOverAllTokens) {
  Task task{.name = "text", .scoring = Scoring::text};
  task.items.resize(2);
  for (Item& item : task.items) item.trials.push_back({.prompt = {1, 2}, .forced = {3}});
  TaskResults results;
  results.results.resize(1, {{TrialResult{}}, {TrialResult{}}});
  results.results[0][0][0].logprobs = {std::log(0.5f), std::log(0.25f)};
  results.results[0][1][0].logprobs = {std::log(0.5f), std::log(0.25f)};
  const TaskReport report = score_task(task, results, 0);
  EXPECT_NEAR(value_of(report, "perplexity", 0), std::pow(0.5 * 0.25, -0.5), 1e-5);
  EXPECT_FALSE(metric_of(report, "KL mean").subjects[0].has_value()) << "it is the reference";
}

TEST(Scoring, TellsPromptAndDecodeApart) {
  Task task{.name = "text", .scoring = Scoring::text};
  task.items.resize(1);
  task.items[0].trials.push_back({.prompt = {1, 2}, .forced = {3, 4, 5}});
  TaskResults results;
  results.results.resize(2, {{TrialResult{}}});
  for (auto& subject : results.results) subject[0][0].logprobs = {-1, -1, -1, -1};
  // Positions of tokens 1 and 2 follow the prompt alone; those of 3 and 4 are decode steps.
  results.results[1][0][0].kl = {0.1f, 0.3f, 1.0f, 3.0f};
  results.results[1][0][0].agrees = {1, 1, 1, 0};
  const TaskReport report = score_task(task, results, 0);
  EXPECT_NEAR(value_of(report, "KL mean", 1), 1.1, 1e-6);
  EXPECT_NEAR(value_of(report, "KL mean, prompt", 1), 0.2, 1e-6);
  EXPECT_NEAR(value_of(report, "KL mean, decode", 1), 2.0, 1e-6);
  EXPECT_NEAR(value_of(report, "KL median", 1), 0.65, 1e-6);
  EXPECT_NEAR(value_of(report, "KL max", 1), 3.0, 1e-6);
  EXPECT_NEAR(value_of(report, "KL p99", 1), 2.94, 1e-5);
  EXPECT_NEAR(value_of(report, "top-1 agreement", 1), 75, 1e-6);
}

TEST(Scoring, CountsAnAnswerOnlyAsAWholeAndWhatWasLost) {
  Task task{.name = "t"};
  task.items = {question(128, 0), question(128, 0), question(256, 0), question(256, 1)};
  TaskResults results;
  results.results.resize(2);
  results.results[0] = {
      {answered({1, 1})}, {answered({1, 1})}, {answered({1, 1})}, {answered({0, 1})}};
  results.results[1] = {
      {answered({1, 1})}, {answered({1, 0})}, {answered({1, 1})}, {answered({1, 1})}};
  const TaskReport report = score_task(task, results, 0);
  EXPECT_DOUBLE_EQ(value_of(report, "accuracy", 0), 75);
  EXPECT_DOUBLE_EQ(value_of(report, "accuracy", 1), 75) << "one was lost and one was won";
  EXPECT_NEAR(value_of(report, "lost", 1), 100.0 / 3, 1e-9);
  EXPECT_FALSE(metric_of(report, "lost").subjects[0].has_value());
  EXPECT_DOUBLE_EQ(value_of(report, "surprise", 1), 0.5);
  ASSERT_TRUE(report.grid.has_value());
  EXPECT_THAT(report.grid->lengths, ElementsAre(128, 256));
  EXPECT_THAT(report.grid->depths, ElementsAre(0, 1));
  EXPECT_THAT(report.grid->subjects[0], ElementsAre(1, 1, -1, 0));
  EXPECT_THAT(report.grid->subjects[1], ElementsAre(0.5, 1, -1, 1));
}

TEST(Scoring, ChoosesByLogLikelihoodAsAWholeAndByByte) {
  Task task{.name = "t", .scoring = Scoring::choice};
  Item item;
  item.id = "7";
  item.choices = {" no", " certainly"};
  item.trials = {{.prompt = {1}, .forced = {2}}, {.prompt = {1}, .forced = {3, 4}}};
  item.right = 1;
  task.items = {item};
  TrialResult brief, lengthy;
  brief.logprobs = {-1.5f};           // -0.5 per byte
  lengthy.logprobs = {-1.0f, -1.0f};  // -0.2 per byte
  TaskResults results;
  results.results = {{{brief, lengthy}}};
  const TaskReport report = score_task(task, results, 0);
  EXPECT_DOUBLE_EQ(value_of(report, "accuracy", 0), 0);
  EXPECT_DOUBLE_EQ(value_of(report, "accuracy by byte", 0), 100);
  ASSERT_EQ(report.choices.size(), 1u);
  EXPECT_EQ(report.choices[0].id, "7");
  EXPECT_THAT(report.choices[0].subjects[0], ElementsAre(DoubleEq(-1.5), DoubleEq(-2)));
}

TEST(Scoring, FindsAnAnswerWithinWhatWasGenerated) {
  Item item;
  item.trials.push_back({.prompt = {1}, .generate = 8});
  item.answer = "d1ff29be";
  TrialResult result;
  result.text = " The value is \"d1ff29be\".";
  EXPECT_EQ(accuracy(Scoring::contains, item, {result}).value(), 1);
  result.text = " d1ff29bf";
  EXPECT_EQ(accuracy(Scoring::contains, item, {result}).value(), 0);
}

// One context of 100 tokens with two forked questions of 2 tokens, and answers of 2 tokens.
Item forked(int32_t length = 100) {
  Item item;
  item.length = length;
  for (int i = 0; i < 2; ++i) {
    item.trials.push_back({.prompt = std::vector<int32_t>(static_cast<size_t>(length), 1),
                           .forced = {2, 3, 4, 5},
                           .turns = {{2, 2}}});
  }
  return item;
}

TEST(Scoring, CountsEachQuestionOfAContextAndEachTurn) {
  Task task{.name = "t"};
  task.items = {forked()};
  TaskResults results;
  results.results = {{{answered({1, 1}), answered({1, 0})}}};
  EXPECT_DOUBLE_EQ(value_of(score_task(task, results, 0), "accuracy", 0), 50);
  Trial turns = task.items[0].trials[0];
  turns.forced = {2, 3, 4, 5, 6};
  turns.turns = {{1, 2}, {1, 1}};
  task.items[0].trials = {turns};
  results.results = {{{answered({1, 0, 1})}}};
  EXPECT_DOUBLE_EQ(value_of(score_task(task, results, 0), "accuracy", 0), 50);
}

TEST(Evidence, LeavesOutPositionsAtWhichThePolicyHasNotActed) {
  Task task{.name = "t"};
  task.items = {forked()};
  TaskResults results;
  results.results.assign(2, {{answered({1, 1}), answered({1, 1})}});
  for (TrialResult& own : results.results[1][0]) own.kl = {0.5f, 1.0f, 2.0f};
  const auto evidence = [&](std::optional<int32_t> from) {
    for (TrialResult& own : results.results[1][0]) own.acted_from = from;
    return evidence_of(task, results, 1)[0];
  };
  // The entries come after positions 100, 101 and 102.
  EXPECT_DOUBLE_EQ(evidence(64).kl.sum, 7);
  EXPECT_DOUBLE_EQ(evidence(102).kl.sum, 4);
  EXPECT_EQ(evidence(102).lost.of, 2) << "the last token of each answer";
  EXPECT_EQ(evidence(103).kl.of, 0);
  EXPECT_EQ(evidence(103).lost.of, 0);
  EXPECT_EQ(evidence(std::nullopt).kl.of, 0);
}

TEST(Evidence, TakesAnswersOnlyWhereTheReferenceGives80PercentOfThem) {
  Task task{.name = "t"};
  task.items = {forked(100), forked(200), forked(4000)};
  TaskResults results;
  results.results.assign(2, {{answered({1, 1}), answered({1, 1})},
                             {answered({1, 1}), answered({0, 1})},
                             {answered({1, 1}), answered({1, 1})}});
  for (auto& item : results.results[1]) {
    item[0] = answered({0, 1});
    for (TrialResult& own : item) own.acted_from = 64;
  }
  const std::vector<ContextEvidence> evidence = evidence_of(task, results, 1);
  EXPECT_EQ(evidence[0].lost.sum, 1);
  EXPECT_EQ(evidence[0].lost.of, 2);
  EXPECT_EQ(evidence[1].lost.of, 0) << "the reference answers 50 %";
  EXPECT_EQ(evidence[2].lost.of, 0) << "at 4000 tokens the divergence decides";
  const std::vector<Qualification> qualified = qualify(task, results);
  ASSERT_EQ(qualified.size(), 3u);
  EXPECT_TRUE(qualified[0].counts);
  EXPECT_EQ(qualified[1].accuracy, 0.5);
}

TEST(Evidence, DoesNotCountGains) {
  Task task{.name = "t"};
  task.items = {forked(), forked(), forked()};
  TaskResults results;
  results.results.assign(2, {3, {answered({1, 1}), answered({1, 1})}});
  results.results[0][2][1] = answered({0, 1});  // the subject is right
  for (auto& item : results.results[1]) {
    for (TrialResult& own : item) own.acted_from = 64;
  }
  Ratio lost;
  for (const ContextEvidence& context : evidence_of(task, results, 1)) lost.add(context.lost);
  EXPECT_EQ(lost.sum, 0);
  EXPECT_EQ(lost.of, 5);
}

TEST(Scoring, FollowsTheDistanceAlongAText) {
  Task task{.name = "generation", .scoring = Scoring::text, .along = true};
  task.items.resize(1);
  task.items[0].trials.push_back({.prompt = {1}, .generate = 20, .compare = true});
  TaskResults results;
  results.results.resize(2, {{TrialResult{}}});
  for (auto& subject : results.results) subject[0][0].logprobs.assign(20, -1.0f);
  for (int i = 0; i < 20; ++i) {
    results.results[1][0][0].kl.push_back(static_cast<float>(i));
    results.results[1][0][0].agrees.push_back(1);
  }
  const TaskReport report = score_task(task, results, 0);
  ASSERT_TRUE(report.course.has_value());
  EXPECT_EQ(report.course->positions.size(), 10u);
  EXPECT_EQ(report.course->positions[0], 1);
  EXPECT_TRUE(report.course->subjects[0].empty());
  EXPECT_THAT(report.course->subjects[1],
              ElementsAre(0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, 14.5, 16.5, 18.5));
}

struct Judged {
  Report report;
  std::vector<TaskResults> results;
};

// Evaluates two subjects on a text: the second with this KL divergence.
Judged judge_text(float kl) {
  Task task{.name = "text", .scoring = Scoring::text};
  task.items.resize(6);
  TaskResults results;
  results.results.resize(2, std::vector<std::vector<TrialResult>>(6, {TrialResult{}}));
  for (size_t i = 0; i < 6; ++i) {
    task.items[i].trials.push_back({.prompt = {1}, .forced = {2, 3}});
    TrialResult& reference = results.results[0][i][0];
    TrialResult& own = results.results[1][i][0];
    reference.logprobs = {-1.0f, -1.0f};
    own.logprobs = {-1.0f, -1.0f};
    own.acted_from = 1;
    own.kl = {kl, kl};
    own.agrees = {1, 1};
    reference.kv = KvUse{6400, 100, {}};
    own.kv = KvUse{1600, 100, {100, 50, 25, 25}};
  }
  Judged judged;
  judged.report.subjects.resize(2);
  judged.report.subjects[0].name = "f16";
  judged.report.subjects[1].name = "other";
  judged.report.tasks = {score_task(task, results, 0)};
  judged.results = {results};
  judge_subjects({&task, 1}, judged.results, {2, 2}, judged.report);
  return judged;
}

TEST(JudgedSubjects, HaveTheVerdictOfTheirPositions) {
  const auto judgement = [](float kl) { return *judge_text(kl).report.subjects[1].judgement; };
  EXPECT_EQ(judgement(0.009f).verdict, Verdict::lossless);
  EXPECT_EQ(judgement(0.011f).verdict, Verdict::near);
  EXPECT_EQ(judgement(0.2f).verdict, Verdict::no);
  EXPECT_THAT(judgement(0.2f).reason, testing::HasSubstr("no in text"));
  EXPECT_FALSE(judge_text(0).report.subjects[0].judgement.has_value());
}

TEST(JudgedSubjects, AddUpBytesAndWhatHeadsKeep) {
  const Judged judged = judge_text(0);
  EXPECT_EQ(judged.report.subjects[0].kv->bytes_per_token(), 64);
  EXPECT_EQ(judged.report.subjects[1].kv->bytes_per_token(), 16);
  EXPECT_FALSE(judged.report.subjects[0].kept.has_value());
  ASSERT_TRUE(judged.report.subjects[1].kept.has_value());
  EXPECT_THAT(judged.report.subjects[1].kept->share, ElementsAre(1, 0.5, 0.25, 0.25));
}

}  // namespace
}  // namespace tessera
