#include "load/workload/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "load/request/json_text.h"
#include "load/workload/prompt_file.h"
#include "load/workload/trace.h"

namespace tessera::load {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr ServerTraits kServer{.tokens_per_word = 1, .tessera = true};

std::unique_ptr<Workload> make(const std::string& text) {
  auto workload = make_workload(*WorkloadSpec::parse(text), kServer);
  EXPECT_TRUE(workload.ok()) << workload.status();
  return std::move(workload).value();
}

std::string refusal(const std::string& text) {
  const auto spec = WorkloadSpec::parse(text);
  return std::string(spec.ok() ? make_workload(*spec, kServer).status().message()
                               : spec.status().message());
}

std::string prompt_of(const Workload& workload, uint64_t number, uint64_t seed = 1) {
  return workload.session(number, seed)->next().messages.back().content;
}

int words_in(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1;
}

TEST(Workload, RefusesUnknownNamesAndSettingsByName) {
  EXPECT_THAT(refusal("chats"), HasSubstr("'chats'"));
  EXPECT_THAT(refusal("chat:inputs=3"), HasSubstr("'inputs'"));
  EXPECT_THAT(refusal("chat:input=x"), HasSubstr("'x' is not a length"));
  EXPECT_THAT(refusal("recall:keys=100"), HasSubstr("'100'"));
  EXPECT_THAT(refusal("chat:input"), HasSubstr("NAME=VALUE"));
  EXPECT_THAT(refusal("json"), HasSubstr("schema"));
}

TEST(Workload, ASessionIsAFunctionOfSeedAndNumber) {
  for (const char* spec : {"chat", "prefix", "recall", "repeat"}) {
    const auto workload = make(spec);
    EXPECT_EQ(prompt_of(*workload, 3), prompt_of(*make(spec), 3)) << spec;
    EXPECT_NE(prompt_of(*workload, 3, 1), prompt_of(*workload, 3, 2)) << spec;
  }
}

TEST(Chat, LengthsAreFixedUniformOrLognormal) {
  EXPECT_EQ(words_in(prompt_of(*make("chat:input=40"), 9)), 40);
  const auto uniform = make("chat:input=10-20:output=5-6");
  const auto lognormal = make("chat:input=~100");
  std::vector<int> medians;
  for (uint64_t i = 0; i < 301; ++i) {
    const int words = words_in(prompt_of(*uniform, i));
    EXPECT_GE(words, 10);
    EXPECT_LE(words, 20);
    medians.push_back(words_in(prompt_of(*lognormal, i)));
  }
  std::sort(medians.begin(), medians.end());
  EXPECT_NEAR(medians[150], 100, 15);
}

TEST(Chat, TurnsGrowByTheAnswersWithThinkTime) {
  const auto workload = make("turns:turns=3:think=2:input=5:followup=2");
  const auto session = workload->session(0, 1);
  EXPECT_EQ(session->next().messages.size(), 1u);
  EXPECT_GT(session->answered("first answer").value(), 0);
  const LoadRequest second = session->next();
  ASSERT_EQ(second.messages.size(), 3u);
  EXPECT_EQ(second.messages[1].content, "first answer");
  EXPECT_EQ(second.turn, 1);
  session->answered("x");
  session->next();
  EXPECT_FALSE(session->answered("x"));
}

TEST(Chat, GroupsShareTheirPrefix) {
  const auto workload = make("prefix:prefix=30:groups=2:input=3");
  std::set<std::string> prefixes;
  for (uint64_t i = 0; i < 20; ++i) {
    prefixes.insert(workload->session(i, 1)->next().messages.front().content);
  }
  EXPECT_EQ(prefixes.size(), 2u);
  EXPECT_EQ(words_in(*prefixes.begin()), 30);
}

TEST(Recall, TheAnswerStandsInThePrompt) {
  for (uint64_t i = 0; i < 50; ++i) {
    const LoadRequest request = make("recall:keys=5")->session(i, 1)->next();
    const std::string& prompt = request.messages[0].content;
    const std::string name = prompt.substr(prompt.rfind(' ') + 1);
    EXPECT_THAT(prompt, HasSubstr("The key of " + name.substr(0, name.size() - 1) + " is " +
                                  request.expected.text));
  }
}

TEST(Repeat, AsksIdleWithoutTheCacheWhatItAsksUnderLoad) {
  const auto workload = make("repeat:prompts=2:input=8");
  const std::vector<LoadRequest> idle = workload->asked_idle(1);
  ASSERT_EQ(idle.size(), 2u);
  EXPECT_EQ(idle[0].fields["cache_prompt"], false);
  std::vector<Answer> answers(2);
  answers[0].text = "zero";
  answers[1].text = "one";
  workload->learn(answers);
  for (uint64_t i = 0; i < 10; ++i) {
    const LoadRequest request = workload->session(i, 1)->next();
    const bool first = request.messages[0].content == idle[0].messages[0].content;
    EXPECT_EQ(request.expected.text, first ? "zero" : "one");
    EXPECT_EQ(request.fields["deterministic"], true);
    EXPECT_FALSE(request.fields.contains("cache_prompt"));
  }
}

// After each answer the tool's result follows, with the call that it belongs to.
TEST(Agent, SendsResultsOfTools) {
  const auto workload = make("agent:turns=3:input=10:followup=20:calls=1");
  const auto session = workload->session(7, 1);
  const LoadRequest first = session->next();
  EXPECT_EQ(first.fields["tools"][0]["function"]["name"], "search");
  EXPECT_EQ(first.fields["tool_choice"], "none");
  ASSERT_EQ(session->answered("I search."), 0);
  const LoadRequest second = session->next();
  ASSERT_EQ(second.messages.size(), 3u);
  EXPECT_EQ(second.messages[1].role, "assistant");
  EXPECT_EQ(second.messages[1].content, "I search.");
  EXPECT_EQ(second.messages[2].role, "tool");
  EXPECT_EQ(second.messages[2].tool_call_id, second.messages[1].tool_calls.at(0).id);
  EXPECT_EQ(words_in(parse_json(second.messages[2].content)["result"].get<std::string>()), 20);
  session->answered("Again.");
  const LoadRequest third = session->next();
  EXPECT_NE(third.messages[4].tool_call_id, second.messages[2].tool_call_id);
  EXPECT_EQ(session->answered("Done."), std::nullopt);
}

// tessera-server refuses tool_calls, so it gets the results alone.
TEST(Agent, LeavesTheCallsOutForTesseraServer) {
  const auto workload = make("agent:turns=2");
  const auto session = workload->session(7, 1);
  EXPECT_FALSE(session->next().fields.contains("tools"));
  session->answered("I search.");
  const LoadRequest second = session->next();
  EXPECT_EQ(second.messages[2].role, "tool");
  EXPECT_TRUE(second.messages[1].tool_calls.empty());
  EXPECT_TRUE(second.messages[2].tool_call_id.empty());
}

TEST(Repeat, SamplesByTheSeedOfThePrompt) {
  const auto idle = make("repeat:prompts=3:temperature=1")->asked_idle(1);
  EXPECT_EQ(idle[2].fields["temperature"], 1);
  EXPECT_EQ(idle[2].fields["seed"], 2);
  EXPECT_FALSE(make("repeat")->asked_idle(1)[0].fields.contains("seed"));
}

TEST(Mix, SessionsFollowTheWeights) {
  Mix mix;
  mix.add(make("chat:name=a"), 3);
  mix.add(make("chat:name=b"), 1);
  int of_a = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    of_a += mix.session(i, 1)->next().workload == "a" ? 1 : 0;
  }
  EXPECT_NEAR(of_a, 3000, 120);
}

TEST(PromptFile, ReadsEachForm) {
  std::istringstream lines(
      "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
      "\"content\": \"A\"}, {\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"user\", "
      "\"content\": \"B\"}], \"answer\": \"42\"}\n"
      "{\"prompt\": \"Once\"}\n\n"
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"C\"}, {\"from\": \"gpt\", "
      "\"value\": \"y\"}]}\n");
  const auto prompts = read_prompts(lines);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_THAT((*prompts)[0].user, testing::ElementsAre("A", "B"));
  EXPECT_EQ((*prompts)[0].system, "S");
  EXPECT_EQ((*prompts)[0].answer, "42");
  EXPECT_EQ((*prompts)[1].prompt, "Once");
  EXPECT_THAT((*prompts)[2].user, testing::ElementsAre("C"));
}

TEST(PromptFile, NamesTheLineThatItCannotRead) {
  for (const char* wrong : {"{}", "[1]", "x", "{\"messages\": []}", "{\"prompt\": 3}"}) {
    std::istringstream lines(std::string("{\"prompt\": \"a\"}\n") + wrong + "\n");
    EXPECT_THAT(std::string(read_prompts(lines).status().message()), HasSubstr("line 2")) << wrong;
  }
}

TEST(Trace, ReadsAzuresCsv) {
  std::istringstream lines(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
      "2023-11-16 18:15:50.9951690,396,109\r\n");
  const auto trace = read_load_trace(lines);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ((*trace)[0].start, 0);
  EXPECT_NEAR((*trace)[1].start, 4.314579, 1e-4);
  EXPECT_EQ((*trace)[1].prompt_tokens, 396);
  EXPECT_EQ((*trace)[1].output_tokens, 109);
}

TEST(Trace, ReadsMillisecondsOfMooncakeAndSecondsOfBailian) {
  std::istringstream mooncake(
      "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 3000, \"input_length\": 9, \"output_length\": 5, \"hash_ids\": [2]}\n");
  EXPECT_EQ((*read_load_trace(mooncake))[1].start, 3);
  std::istringstream bailian(
      "{\"timestamp\": 1.5, \"input_length\": 30, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 4.25, \"input_length\": 9, \"output_length\": 5, \"hash_ids\": [2]}\n");
  EXPECT_EQ((*read_load_trace(bailian))[1].start, 2.75);
  std::istringstream broken("{\"timestamp\": 0}\n");
  EXPECT_THAT(std::string(read_load_trace(broken).status().message()), StartsWith("line 1"));
}

TEST(Trace, EqualHashIdsGiveEqualPrefixes) {
  const std::string path = testing::TempDir() + "trace.jsonl";
  std::ofstream(path)
      << "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 50, \"hash_ids\": [0, 1]}\n"
      << "{\"timestamp\": 9, \"input_length\": 600, \"output_length\": 50, \"hash_ids\": [0, 2]}\n";
  const auto workload = make("trace:path=" + path + ":lengths=0.5:speed=3");
  const std::string first = prompt_of(*workload, 0);
  const std::string second = prompt_of(*workload, 1);
  EXPECT_EQ(words_in(first), 350);
  EXPECT_EQ(words_in(second), 300);
  size_t same = 0;
  while (first[same] == second[same]) ++same;
  EXPECT_GE(words_in(first.substr(0, same)), 256);
  EXPECT_LE(words_in(first.substr(0, same)), 258);
  EXPECT_NEAR(workload->start_of(1).value(), 0.003, 1e-12);
  EXPECT_EQ(workload->session(0, 1)->next().max_tokens, 25);
  EXPECT_EQ(workload->sessions(), 2u);
}

}  // namespace
}  // namespace tessera::load
