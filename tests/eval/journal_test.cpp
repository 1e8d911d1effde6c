#include "eval/run/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "eval/run/evaluation.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Item item_of(std::vector<int32_t> prompt, std::vector<int32_t> forced) {
  Item item;
  item.id = "1";
  item.trials.push_back({.prompt = std::move(prompt), .forced = std::move(forced)});
  return item;
}

TEST(Journal, GivesBackWhatWasAdded) {
  const TemporaryDirectory folder;
  const Item item = item_of({1, 2}, {3});
  TrialResult result;
  result.logprobs = {-0.1f, -1e-7f, -30.25f};
  result.likeliest = {1, 0, 1};
  result.kl = {3e-9f, 0.5f};
  result.agrees = {0, 1};
  result.generated = {4, 5};
  result.text = "half a character: \xC3";
  result.kv = KvUse{4096, 7, {3, 4}};
  result.acted_from = 64;
  {
    auto journal = Journal::open(folder / "j", "m");
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(journal->find("t", "f16", item), nullptr);
    ASSERT_TRUE(journal->add("t", "f16", item, {result}).ok());
  }
  auto journal = Journal::open(folder / "j", "m");
  ASSERT_TRUE(journal.ok()) << journal.status();
  const auto* const found = journal->find("t", "f16", item);
  ASSERT_NE(found, nullptr);
  const TrialResult& read = found->at(0);
  EXPECT_EQ(read.logprobs, result.logprobs);
  EXPECT_EQ(read.likeliest, result.likeliest);
  EXPECT_EQ(read.kl, result.kl);
  EXPECT_EQ(read.agrees, result.agrees);
  EXPECT_EQ(read.generated, result.generated);
  EXPECT_EQ(read.kv->bytes, 4096);
  EXPECT_EQ(read.acted_from, 64);
  EXPECT_THAT(read.kv->kept, ElementsAre(3, 4));
  EXPECT_EQ(journal->find("t", "f32", item), nullptr);
  EXPECT_EQ(journal->find("t", "f16", item_of({1, 2}, {4})), nullptr) << "other tokens";
  Item asking = item;
  asking.trials[0].turns = {{0, 1}};
  EXPECT_EQ(journal->find("t", "f16", asking), nullptr) << "a turn";
}

TEST(Journal, DropsALineThatWasCutOff) {
  const TemporaryDirectory folder;
  const Item item = item_of({1}, {3});
  const Item second = item_of({2}, {3});
  {
    auto journal = Journal::open(folder / "j", "m");
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(journal->add("t", "f16", item, {TrialResult{}}).ok());
  }
  std::ofstream(folder / "j", std::ios::app) << R"({"key": "t/2/f)";
  auto journal = Journal::open(folder / "j", "m");
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_NE(journal->find("t", "f16", item), nullptr);
  ASSERT_TRUE(journal->add("t", "f16", second, {TrialResult{}}).ok());
  auto again = Journal::open(folder / "j", "m");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(again->find("t", "f16", second), nullptr);
}

TEST(Journal, RefusesOneOfAnotherModelAndWhatIsNone) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(Journal::open(folder / "j", "one").ok());
  const absl::Status other = Journal::open(folder / "j", "two").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), testing::AllOf(HasSubstr("one"), HasSubstr("two")));
  write_file(folder / "text", "hello\nworld\n");
  EXPECT_EQ(Journal::open(folder / "text", "m").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Journal::open(folder / "no" / "such", "m").status().code(),
            absl::StatusCode::kInternal);
}

// Returns the first id of each trial's prompt as its log probability, and counts the trials.
class CountingSubject final : public Subject {
 public:
  explicit CountingSubject(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  bool gives_logits() const override { return true; }
  absl::Status run(std::span<const Job> jobs, const std::function<void()>& on_done) override {
    for (const Job& job : jobs) {
      ++runs;
      kept += job.keep_logits != nullptr ? 1 : 0;
      compared += job.reference.empty() ? 0 : 1;
      *job.result = {};
      job.result->logprobs = {static_cast<float>(job.trial->prompt[0])};
      if (job.keep_logits != nullptr) job.keep_logits->assign(8, 0.0f);
      if (job.trial->generate > 0) job.result->generated = {7, 8};
      forced = job.trial->forced;
      on_done();
    }
    return absl::OkStatus();
  }

  int runs = 0, kept = 0, compared = 0;
  std::vector<int32_t> forced;

 private:
  std::string name_;
};

struct Pair {
  Pair() {
    subjects.push_back(std::make_unique<CountingSubject>("f16"));
    subjects.push_back(std::make_unique<CountingSubject>("f32"));
  }
  CountingSubject& at(size_t i) { return static_cast<CountingSubject&>(*subjects[i]); }
  std::vector<std::unique_ptr<Subject>> subjects;
};

TEST(Evaluation, GoesOnWhereItWas) {
  const TemporaryDirectory folder;
  Task task{.name = "t"};
  for (int i = 0; i < 70; ++i) {
    task.items.push_back(item_of({i}, {1}));
    task.items.back().id = std::to_string(i);
  }
  {
    Task half = task;
    half.items.resize(40);
    Pair pair;
    auto journal = Journal::open(folder / "j", "m");
    ASSERT_TRUE(evaluate(half, pair.subjects, {}, *journal).ok());
    EXPECT_EQ(pair.at(0).runs, 40);
  }
  Pair pair;
  auto journal = Journal::open(folder / "j", "m");
  int64_t told = 0;
  EvaluationOptions options;
  options.on_progress = [&](std::string_view, std::string_view, int64_t tokens) { told += tokens; };
  const auto results = evaluate(task, pair.subjects, options, *journal);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(pair.at(0).runs, 30);
  EXPECT_EQ(pair.at(1).runs, 30);
  EXPECT_EQ(told, tokens_to_run(task, 2));
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_EQ(results->results[1][i][0].logprobs[0], static_cast<float>(i));
  }
}

TEST(Evaluation, RunsTheReferenceAgainForWhomItIsMissing) {
  Task task{.name = "t"};
  task.items.push_back(item_of({5}, {}));
  task.items[0].trials[0].generate = 2;
  task.items[0].trials[0].compare = true;
  const TemporaryDirectory folder;
  auto journal = Journal::open(folder / "j", "m");
  Pair alone;
  alone.subjects.pop_back();
  ASSERT_TRUE(evaluate(task, alone.subjects, {}, *journal).ok());
  Pair pair;
  ASSERT_TRUE(evaluate(task, pair.subjects, {}, *journal).ok());
  EXPECT_EQ(pair.at(0).kept, 1);
  EXPECT_EQ(pair.at(1).compared, 1);
  EXPECT_THAT(pair.at(1).forced, ElementsAre(7, 8)) << "the reference's tokens";
}

}  // namespace
}  // namespace tessera
