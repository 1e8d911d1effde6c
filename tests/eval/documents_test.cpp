#include "eval/tasks/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "eval/tasks/held_out_text.h"
#include "eval/tasks/profile.h"
#include "eval/tasks/prompt_text.h"
#include "eval/tasks/split.h"

namespace tessera {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Documents : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                  "models/checkpoints/tessera-tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  static std::string text_of(std::span<const int32_t> ids) {
    return decode_continuation(*tokenizer_, {ids.begin(), ids.end()});
  }

  static Task make(std::string_view kind, Asked asked, uint64_t seed = 5) {
    const auto kinds = document_kinds();
    const auto found = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const DocumentKind& k) { return k.name == kind; });
    EXPECT_NE(found, kinds.end()) << kind;
    return make_documents(*found, asked, {{256, 512}, 3, 4}, *tokenizer_, Material(seed));
  }

  inline static std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(Documents, TellWhatTheyAskLater) {
  for (const char* const kind : {"materials", "colors", "numbers", "pairs", "quotes"}) {
    for (const Item& item : make(kind, Asked::later).items) {
      ASSERT_EQ(item.trials.size(), 4u) << kind;
      for (const Trial& trial : item.trials) {
        EXPECT_EQ(trial.prompt, item.trials[0].prompt) << "forks of one context";
        ASSERT_EQ(trial.turns.size(), 1u);
        const auto asked = static_cast<size_t>(trial.turns[0].asked);
        const std::string question = text_of(std::span(trial.forced).first(asked));
        const std::string answer = text_of(std::span(trial.forced).subspan(asked));
        ASSERT_THAT(question, StartsWith("\n\n"));
        EXPECT_THAT(text_of(trial.prompt), HasSubstr(question.substr(2) + answer)) << kind;
        EXPECT_LE(trial.tokens(), static_cast<size_t>(item.length));
        EXPECT_GT(trial.tokens(), static_cast<size_t>(item.length) - 96);
      }
    }
  }
}

TEST_F(Documents, AskTheSameAtTheEndLaterAndInTurns) {
  const Task end = make("pairs", Asked::end);
  const Task later = make("pairs", Asked::later);
  const Task turns = make("pairs", Asked::turns);
  EXPECT_EQ(end.name, "pairs-end");
  for (size_t i = 0; i < end.items.size(); ++i) {
    ASSERT_EQ(turns.items[i].trials.size(), 1u);
    std::vector<int32_t> all;
    for (size_t q = 0; q < 4; ++q) {
      const auto whole = [](const Trial& trial) {
        std::vector<int32_t> ids = trial.prompt;
        ids.insert(ids.end(), trial.forced.begin(), trial.forced.end());
        return ids;
      };
      const Trial& fork = later.items[i].trials[q];
      EXPECT_EQ(whole(end.items[i].trials[q]), whole(fork));
      EXPECT_EQ(end.items[i].trials[q].turns[0].asked, 0);
      EXPECT_EQ(end.items[i].trials[q].turns[0].answered, fork.turns[0].answered);
      all.insert(all.end(), fork.forced.begin(), fork.forced.end());
    }
    EXPECT_EQ(turns.items[i].trials[0].forced, all);
    EXPECT_EQ(turns.items[i].trials[0].turns.size(), 4u);
  }
}

TEST_F(Documents, ShareNothingBetweenTuningAndReporting) {
  std::set<std::string> answers;
  const std::string tuning = part_of(Split::tuning, held_out_text());
  const std::string reporting = part_of(Split::reporting, held_out_text());
  EXPECT_EQ(tuning + reporting, held_out_text());
  EXPECT_NEAR(static_cast<double>(tuning.size()), static_cast<double>(reporting.size()), 3000);
  const auto tasks = [](Split split) {
    return make_tasks({.tasks = "numbers-later,text",
                       .lengths = {512},
                       .samples = 2,
                       .questions = 4,
                       .seed = 3,
                       .split = split},
                      *tokenizer_, 1024);
  };
  const auto tuned = tasks(Split::tuning);
  const auto reported = tasks(Split::reporting);
  ASSERT_TRUE(tuned.ok() && reported.ok()) << tuned.status() << reported.status();
  for (const Item& item : tuned->front().items) {
    for (const Trial& trial : item.trials) answers.insert(text_of(trial.forced));
  }
  for (const Item& item : reported->front().items) {
    for (const Trial& trial : item.trials) EXPECT_EQ(answers.count(text_of(trial.forced)), 0u);
  }
  const std::string excerpt = text_of(reported->back().items[1].trials[0].prompt).substr(1);
  EXPECT_THAT(reporting, HasSubstr(excerpt));
  EXPECT_EQ(tuning.find(excerpt), tuning.npos);
}

TEST_F(Documents, CanBeCutWhereNoTokenEnds) {
  // The context's last token merges with the question's first letters. It belongs to the question.
  const std::vector<AskedText> questions = {{"ing about the dog", " is"}, {" of a cat", " was"}};
  const std::vector<Trial> trials =
      make_asking_trials("He told me someth", questions, Asked::later, *tokenizer_);
  ASSERT_EQ(trials.size(), 2u);
  EXPECT_EQ(trials[0].prompt, trials[1].prompt);
  EXPECT_THAT(text_of(trials[0].prompt) + text_of(trials[0].forced),
              EndsWith("something about the dog is"));
}

}  // namespace
}  // namespace tessera
