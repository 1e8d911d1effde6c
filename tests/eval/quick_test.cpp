// The quick profile on the shipped model, with bounds: a kernel change that reduces quality fails
// here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/kv/kv_presets.h"
#include "eval/report/writers.h"
#include "eval/run/evaluation.h"
#include "eval/run/model_host.h"
#include "eval/score/scoring.h"
#include "eval/tasks/profile.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/eval/one_bit_backend.h"

namespace tessera {
namespace {

constexpr size_t kF16 = 0;
constexpr size_t kF32 = 1;
constexpr size_t kOneBit = 2;

const EvalPreset kOneBitValues{"one-bit", kKvPresetF16.policy};

class QuickProfile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path model =
        std::filesystem::path(TESSERA_SOURCE_DIR) / "models/checkpoints/tessera-tiny";
    auto tokenizer = Tokenizer::load(model);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    auto tasks = make_tasks({.tasks = "quick"}, **tokenizer, 512);
    ASSERT_TRUE(tasks.ok()) << tasks.status();
    const ModelHostOptions options{.model = model, .context = 512};
    auto sound = ModelHost::load(options, cpu_backend(best_cpu_isa()));
    ASSERT_TRUE(sound.ok()) << sound.status();
    auto broken = ModelHost::load(options, one_bit_backend());
    ASSERT_TRUE(broken.ok()) << broken.status();

    std::vector<std::unique_ptr<Subject>> subjects;
    const auto presets = find_eval_presets("f16,f32");
    ASSERT_TRUE(presets.ok()) << presets.status();
    for (const EvalPreset& preset : *presets) {
      add_subject(**sound, preset, **tokenizer, subjects);
    }
    add_subject(**broken, kOneBitValues, **tokenizer, subjects);
    judge(*tasks, subjects, (*sound)->config());
  }

  static void add_subject(const ModelHost& host, const EvalPreset& preset,
                          const Tokenizer& tokenizer,
                          std::vector<std::unique_ptr<Subject>>& subjects) {
    auto subject = host.subject(preset, tokenizer);
    ASSERT_TRUE(subject.ok()) << subject.status();
    report_.subjects.emplace_back().name = (*subject)->name();
    subjects.push_back(*std::move(subject));
  }

  static void judge(const std::vector<Task>& tasks,
                    const std::vector<std::unique_ptr<Subject>>& subjects,
                    const ModelConfig& config) {
    auto journal = Journal::open("", "");
    ASSERT_TRUE(journal.ok());
    EvaluationOptions options;
    options.vocab = config.vocab;
    std::vector<TaskResults> results;
    for (const Task& task : tasks) {
      auto found = evaluate(task, subjects, options, *journal);
      ASSERT_TRUE(found.ok()) << found.status();
      results.push_back(*std::move(found));
      report_.tasks.push_back(score_task(task, results.back(), 0));
    }
    judge_subjects(tasks, results, {config.layers, config.kv_heads}, report_);
  }

  static double score(const std::string& task, const std::string& metric, size_t subject) {
    for (const TaskReport& t : report_.tasks) {
      for (const MetricReport& m : t.metrics) {
        if (t.name == task && m.name == metric) {
          return m.subjects.at(subject).value_or(Interval{-1, -1, -1}).value;
        }
      }
    }
    ADD_FAILURE() << "no score " << task << " " << metric;
    return -1;
  }

  inline static Report report_;
};

const char* const kRetrieval[] = {"passkey", "multikey", "json"};

TEST_F(QuickProfile, FindsF16AsGoodAsF32) {
  EXPECT_LT(score("text", "KL mean", kF32), 1e-4);
  EXPECT_LT(score("text", "KL max", kF32), 1e-3);
  EXPECT_LT(score("generation", "KL mean", kF32), 1e-4);
  EXPECT_GT(score("text", "top-1 agreement", kF32), 99.5);
  EXPECT_EQ(report_.tasks.front().judgements[kF32]->verdict, Verdict::lossless);
  // No loss in so few answers is near, and not lossless.
  EXPECT_EQ(report_.subjects[kF32].judgement->verdict, Verdict::near)
      << report_.subjects[kF32].judgement->reason;
  for (const char* const task : kRetrieval) {
    EXPECT_EQ(score(task, "lost", kF32), 0) << task;
    EXPECT_EQ(score(task, "accuracy", kF16), score(task, "accuracy", kF32)) << task;
  }
}

TEST_F(QuickProfile, FindsWhatTheShippedModelCanDo) {
  EXPECT_NEAR(score("text", "perplexity", kF16), 36.72, 0.1);
  EXPECT_GE(score("passkey", "accuracy", kF16), 80);
  EXPECT_GE(score("multikey", "accuracy", kF16), 95);
  EXPECT_GE(score("json", "accuracy", kF16), 95);
  EXPECT_GE(score("copy", "accuracy", kF16), 75);
}

TEST_F(QuickProfile, CatchesValuesOfOneBit) {
  EXPECT_GT(score("text", "KL mean", kOneBit), 0.1);
  EXPECT_LT(score("text", "top-1 agreement", kOneBit), 90);
  EXPECT_GT(score("generation", "KL mean", kOneBit), 0.1);
  EXPECT_EQ(report_.subjects[kOneBit].judgement->verdict, Verdict::no) << print_table(report_);
  EXPECT_GT(score("copy", "lost", kOneBit), 40);
  double lost = 0;
  for (const char* const task : kRetrieval) {
    lost += score(task, "lost", kOneBit) / 3;
  }
  EXPECT_GT(lost, 5) << print_table(report_);
}

TEST_F(QuickProfile, MeasuresTheBytesOfPages) {
  const auto& text = report_.tasks.front();
  ASSERT_EQ(text.name, "text");
  // A text window has 255 tokens. Each of 6 layers and 2 KV heads stores them in three pages of 64
  // tokens and a residual buffer, with their tables.
  EXPECT_GT(text.kv[kF16]->tokens, 255 * (text.items - 1));  // the last one is shorter
  EXPECT_LE(text.kv[kF16]->tokens, 255 * text.items);
  const int64_t elements = text.items * 4 * 12 * 64 * 128 * 2;
  const int64_t tables = text.items * 1024;
  EXPECT_GE(text.kv[kF16]->bytes, elements * 2);
  EXPECT_LE(text.kv[kF16]->bytes, elements * 2 + tables);
  EXPECT_GE(text.kv[kF32]->bytes, elements * 4);
  EXPECT_LE(text.kv[kF32]->bytes, elements * 4 + tables);
}

}  // namespace
}  // namespace tessera
