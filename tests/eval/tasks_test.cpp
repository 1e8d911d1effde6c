#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "eval/tasks/held_out_text.h"
#include "eval/tasks/jsonl.h"
#include "eval/tasks/material.h"
#include "eval/tasks/profile.h"
#include "eval/tasks/prompt_text.h"
#include "eval/tasks/retrieval.h"
#include "eval/tasks/writing.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Tasks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto loaded = Tokenizer::load(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                  "models/checkpoints/tessera-tiny");
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  static std::string text_of(const std::vector<int32_t>& ids) {
    return decode_continuation(*tokenizer_, ids);
  }
  static std::string prompt(const Item& item) { return text_of(item.trials[0].prompt); }
  static std::string forced(const Item& item) { return text_of(item.trials[0].forced); }

  absl::StatusOr<Task> read(const std::string& lines, const JsonlOptions& options = {}) {
    write_file(folder_ / "mine.jsonl", lines);
    return read_jsonl_task(folder_ / "mine.jsonl", options, *tokenizer_);
  }

  inline static std::unique_ptr<Tokenizer> tokenizer_;
  TemporaryDirectory folder_;
};

TEST(Material, IsHeldOutByZlibsChecksum) {
  // zlib.crc32(b"123456789") is 0xCBF43926: 6 modulo 8.
  EXPECT_FALSE(is_held_out("123456789"));
  EXPECT_TRUE(is_held_out(""));  // 0
  Material material(1);
  int held_out = 0;
  for (int i = 0; i < 8000; ++i) held_out += is_held_out(std::to_string(i)) ? 1 : 0;
  EXPECT_NEAR(held_out, 1000, 100);
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(is_held_out(material.draw(Material::Kind::number)));
    EXPECT_TRUE(is_held_out(material.draw(Material::Kind::hex)));
  }
}

TEST(Material, DependsOnItsSeedAlone) {
  Material one(4), same(4), other(5);
  const std::string first = one.prose() + one.draw(Material::Kind::hex);
  EXPECT_EQ(first, same.prose() + same.draw(Material::Kind::hex));
  EXPECT_NE(first, other.prose() + other.draw(Material::Kind::hex));
}

TEST(HeldOutText, IsStoriesOfOneLineEach) {
  const std::string& text = held_out_text();
  EXPECT_THAT(text, StartsWith("Once upon a time"));
  EXPECT_THAT(text, testing::Not(HasSubstr("  ")));
  EXPECT_THAT(text, testing::Not(HasSubstr("\n\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(Tasks, SplitsIdsWhereTheContextEnds) {
  const SplitIds ids = encode_split(*tokenizer_, "The key is ", "48213.");
  EXPECT_EQ(text_of(ids.continuation), " 48213.") << "the space goes with the number";
  std::vector<int32_t> whole = ids.prompt;
  whole.insert(whole.end(), ids.continuation.begin(), ids.continuation.end());
  EXPECT_EQ(whole, encode_text(*tokenizer_, "The key is 48213."));
  EXPECT_EQ(whole.front(), tokenizer_->bos_id());
  const SplitIds empty = encode_split(*tokenizer_, "", "Hello");
  EXPECT_THAT(empty.prompt, ElementsAre(*tokenizer_->bos_id()));
}

TEST_F(Tasks, FillContextsToTheirLength) {
  for (const RetrievalKind& kind : retrieval_kinds()) {
    SCOPED_TRACE(std::string(kind.name));
    const Task task = make_retrieval(kind, {{128, 512, 1024}, {0, 0.5, 1}, 3}, *tokenizer_, 11);
    ASSERT_EQ(task.items.size(), 27u);
    std::set<std::string> ids;
    for (const Item& item : task.items) {
      ids.insert(item.id);
      const auto tokens = static_cast<int32_t>(item.trials[0].tokens());
      EXPECT_LE(tokens, item.length);
      EXPECT_GT(tokens, item.length - 40);
      EXPECT_EQ(item.trials[0].generate, 0);
    }
    EXPECT_EQ(ids.size(), 27u) << "ids name items";
  }
}

TEST_F(Tasks, PutTheNeedleWhereTheDepthSays) {
  const RetrievalKind& multikey = retrieval_kinds()[1];
  const Task task = make_retrieval(multikey, {{512}, {0, 0.5, 1}, 4}, *tokenizer_, 3);
  for (const Item& item : task.items) {
    const std::string context = prompt(item);
    const std::string answer = forced(item);  // " 48213."
    const size_t question = context.rfind("The key of ");
    const std::string asked = context.substr(question);  // "The key of apple is"
    const size_t told = context.find(asked + answer);
    ASSERT_LT(told, question) << context;
    EXPECT_EQ(context.find(asked, told + 1), question) << "told once";
    const double depth = static_cast<double>(told) / static_cast<double>(question);
    EXPECT_NEAR(depth, item.depth, 0.08) << item.id;
  }
}

TEST_F(Tasks, AskForThePassKeyInProse) {
  const Task task = make_retrieval(retrieval_kinds()[0], {{256}, {0.5}, 5}, *tokenizer_, 3);
  for (const Item& item : task.items) {
    const std::string told = "The pass key is" + forced(item) + " Remember it.";
    EXPECT_THAT(prompt(item), HasSubstr(told));
    EXPECT_THAT(prompt(item), EndsWith(" The pass key is"));
  }
}

TEST_F(Tasks, AskLaterForWhatThePromptTells) {
  const RetrievalKind& later = retrieval_kinds().back();
  ASSERT_EQ(later.name, "later");
  const Task task = make_retrieval(later, {{256}, {0, 0.5}, 5}, *tokenizer_, 3);
  for (const Item& item : task.items) {
    const Trial& trial = item.trials[0];
    ASSERT_GT(trial.asked, 0);
    const std::vector<int32_t> answer(trial.forced.begin() + trial.asked, trial.forced.end());
    EXPECT_EQ(forced(item), " The pass key is" + text_of(answer));
    EXPECT_THAT(prompt(item), HasSubstr("The pass key is" + text_of(answer) + " Remember it."));
    EXPECT_THAT(prompt(item), Not(EndsWith(" The pass key is")));
  }
}

TEST_F(Tasks, RepeatThemselvesForTheSameSeed) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}}) {
    const auto first = make_tasks({.tasks = "quick", .seed = seed}, *tokenizer_, 512);
    const auto again = make_tasks({.tasks = "quick", .seed = seed}, *tokenizer_, 512);
    ASSERT_TRUE(first.ok() && again.ok());
    for (size_t t = 0; t < first->size(); ++t) {
      for (size_t i = 0; i < (*first)[t].items.size(); ++i) {
        EXPECT_EQ((*first)[t].items[i].trials[0].prompt, (*again)[t].items[i].trials[0].prompt);
      }
    }
  }
}

TEST_F(Tasks, CutATextIntoWindowsThatCoverIt) {
  const Task task = make_text(held_out_text(), {192, 64}, *tokenizer_);
  std::string text;
  for (const Item& item : task.items) {
    const Trial& trial = item.trials[0];
    EXPECT_TRUE(trial.compare);
    EXPECT_EQ(trial.prompt.front(), tokenizer_->bos_id());
    EXPECT_LE(trial.tokens(), 256u);
    text += text_of({trial.prompt.begin() + 1, trial.prompt.end()}) + text_of(trial.forced);
  }
  EXPECT_EQ(task.items.front().trials[0].prompt.size(), 192u);
  EXPECT_THAT(" " + held_out_text(), StartsWith(text));
  EXPECT_GT(text.size(), held_out_text().size() - 100);
  EXPECT_EQ(make_text("Hello world", {192, 64}, *tokenizer_).items.size(), 1u);
}

TEST_F(Tasks, CopyFromAnExampleOfTheSameKind) {
  const Task task = make_copy(20, 192, *tokenizer_, 9);
  for (const Item& item : task.items) {
    const std::string answer = forced(item);
    EXPECT_THAT(answer, EndsWith("\n"));
    const std::string context = prompt(item);
    const std::string list = answer.substr(0, answer.size() - 1);
    EXPECT_THAT(context, HasSubstr(":" + list + "\n")) << "the text to copy";
    EXPECT_THAT(context, EndsWith(":"));
    EXPECT_LE(item.trials[0].tokens(), 192u);
  }
}

TEST_F(Tasks, LeaveOutWhatDoesNotFit) {
  const auto tasks =
      make_tasks({.tasks = "multikey", .lengths = {128, 512}, .samples = 2}, *tokenizer_, 256);
  ASSERT_TRUE(tasks.ok()) << tasks.status();
  EXPECT_EQ(tasks->front().items.size(), 10u);
  EXPECT_EQ(tasks->front().left_out, 10);
  const auto none = make_tasks({.tasks = "multikey", .lengths = {512}}, *tokenizer_, 256);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("none of 40 items fits"));
}

TEST_F(Tasks, AreRefusedByName) {
  const auto unknown = make_tasks({.tasks = "text,pashkey"}, *tokenizer_, 512);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              testing::AllOf(HasSubstr("'pashkey'"), HasSubstr("multikey")));
  EXPECT_EQ(make_tasks({.tasks = "text", .text = "/no/such"}, *tokenizer_, 512).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(Tasks, ReadExactAnswers) {
  const auto task = read(R"({"prompt": "2 + 2 =", "answer": " 4"})"
                         "\n\n"
                         R"({"prompt": "Say: ", "answer": "x", "id": "last"})"
                         "\n");
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->name, "mine");
  EXPECT_EQ(task->scoring, Scoring::exact);
  ASSERT_EQ(task->items.size(), 2u);
  EXPECT_EQ(task->items[0].id, "1");
  EXPECT_EQ(forced(task->items[0]), " 4");
  EXPECT_EQ(task->items[1].id, "last");
  EXPECT_EQ(forced(task->items[1]), " x");
}

TEST_F(Tasks, ReadChoicesByIndexAndByText) {
  const auto task =
      read(R"({"prompt": "Dogs", "choices": [" bark.", " meow."], "answer": 1})"
           "\n"
           R"({"prompt": "Cats", "choices": [" bark.", " meow."], "answer": " bark."})"
           "\n");
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->scoring, Scoring::choice);
  EXPECT_EQ(task->items[0].right, 1u);
  EXPECT_EQ(task->items[1].right, 0u);
  ASSERT_EQ(task->items[0].trials.size(), 2u);
  EXPECT_EQ(text_of(task->items[0].trials[1].forced), " meow.");
}

TEST_F(Tasks, ReadKvRetrievalAndKeepSomePairs) {
  std::string records;
  for (int i = 0; i < 11; ++i) {
    records += (i > 0 ? ", " : "") + std::string("[\"k") + std::to_string(i) + "\", \"v" +
               std::to_string(i) + "\"]";
  }
  const std::string line =
      "{\"ordered_kv_records\": [" + records + "], \"key\": \"k5\", \"value\": \"v5\"}\n";
  const auto whole = read(line);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->scoring, Scoring::contains);
  EXPECT_EQ(whole->items[0].depth, 0.5);
  EXPECT_EQ(whole->items[0].length, 11);
  EXPECT_EQ(whole->items[0].answer, "v5");
  EXPECT_GT(whole->items[0].trials[0].generate, 2);
  EXPECT_THAT(prompt(whole->items[0]), EndsWith("Key: \"k5\"\nCorresponding value:"));
  EXPECT_THAT(prompt(whole->items[0]), HasSubstr("{\"k0\": \"v0\",\n \"k1\""));
  const auto three = read(line, {.kv_pairs = 3});
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->items[0].depth, 0.5);
  EXPECT_THAT(prompt(three->items[0]),
              HasSubstr("{\"k4\": \"v4\",\n \"k5\": \"v5\",\n \"k6\": \"v6\"}"));
}

TEST_F(Tasks, ReadContextsWithQuestions) {
  const std::string line = R"({"context": "A cat saw a dog.", "questions": [)"
                           R"({"question": " The cat saw a", "answer": " dog."}, )"
                           R"({"question": " The dog saw a", "answer": " cat."}], "asked": )";
  const auto later = read(line + "\"later\"}\n");
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_EQ(later->items[0].trials.size(), 2u);
  EXPECT_EQ(prompt(later->items[0]), text_of(later->items[0].trials[1].prompt));
  EXPECT_EQ(text_of(later->items[0].trials[1].forced), " The dog saw a cat.");
  const auto turns = read(line + "\"turns\"}\n");
  ASSERT_TRUE(turns.ok()) << turns.status();
  ASSERT_EQ(turns->items[0].trials.size(), 1u);
  EXPECT_EQ(forced(turns->items[0]), " The cat saw a dog. The dog saw a cat.");
  const auto end = read(line + "\"end\"}\n");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_THAT(prompt(end->items[0]), EndsWith("The cat saw a"));
}

TEST_F(Tasks, ReadOtherLinesForTuningThanForReporting) {
  std::string lines;
  for (const char c : {'a', 'b', 'c', 'd'}) {
    lines += std::string("{\"prompt\": \"Say\", \"answer\": \" ") + c + "\"}\n";
  }
  const auto tuning = read(lines, {.split = Split::tuning});
  const auto reporting = read(lines, {.split = Split::reporting});
  ASSERT_TRUE(tuning.ok() && reporting.ok());
  EXPECT_EQ(forced(tuning->items[1]), " c");
  EXPECT_EQ(forced(reporting->items[1]), " d");
}

TEST_F(Tasks, RefuseAFileWithFileAndLine) {
  const std::map<std::string, std::string> wrong = {
      {"{", "mine.jsonl:1: not a JSON object"},
      {"[]", "not a JSON object"},
      {"{\"prompt\": \"a\"}", "neither"},
      {"{\"answer\": \"a\"}", "\"prompt\" is missing"},
      {"{\"prompt\": \"a\", \"answer\": \"\"}", "no tokens of its own"},
      {"{\"prompt\": \"a\", \"choices\": [\" b\"], \"answer\": 0}", "at least two"},
      {"{\"prompt\": \"a\", \"choices\": [\" b\", 3], \"answer\": 0}", "must be strings"},
      {"{\"prompt\": \"a\", \"choices\": [\" b\", \" c\"], \"answer\": 2}", "one of the 2 choices"},
      {"{\"prompt\": \"a\", \"choices\": [\" b\", \" c\"], \"answer\": -1}",
       "one of the 2 choices"},
      {"{\"ordered_kv_records\": [[\"a\"]], \"key\": \"a\", \"value\": \"b\"}", "pairs of strings"},
      {"{\"ordered_kv_records\": [[\"a\", \"b\"]], \"key\": \"c\", \"value\": \"b\"}",
       "none of the"},
      {"{\"prompt\": \"a\", \"answer\": \" b\"}\n{\"prompt\": \"a\", \"choices\": []}",
       "mine.jsonl:2: another form"},
      {R"({"context": "a", "questions": [], "asked": "later"})", "is empty"},
      {R"({"context": "a", "questions": [{"question": "b"}], "asked": "later"})", "\"answer\""},
      {R"({"context": "a", "questions": [], "asked": "soon"})", "'soon'"},
      {R"({"context": "a", "questions": [3], "asked": "end"})", "\"question\" is missing"},
      {"\n \n", "no items"},
  };
  for (const auto& [lines, message] : wrong) {
    SCOPED_TRACE(lines);
    const auto task = read(lines);
    EXPECT_EQ(task.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(task.status().message()), HasSubstr(message));
  }
  EXPECT_EQ(read_jsonl_task("/no/such.jsonl", {}, *tokenizer_).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
