#include "server/generation/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/telemetry/metrics.h"
#include "tests/server/fake_engine.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Recorder final : public EventSink {
 public:
  void on_logprobs(const TokenLogprobs& logprobs) override {
    logprobs_of.push_back(logprobs.chosen.token);
  }
  void on_token(int32_t token) override { tokens.push_back(token); }
  void on_finish(const Finish& finish) override { finishes.push_back(finish); }

  std::vector<int32_t> logprobs_of;
  std::vector<int32_t> tokens;
  std::vector<Finish> finishes;
};

GenerateRequest prompt(Prompt some) {
  GenerateRequest request;
  request.prompt = std::move(some);
  return request;
}

// Starts one generation of a request.
absl::StatusOr<Generation> generate(FakeService& fake, GenerateRequest request,
                                    const std::shared_ptr<Recorder>& sink) {
  auto accepted = fake.service->generate(std::move(request), {sink});
  if (!accepted.ok()) {
    return accepted.status();
  }
  return std::move(accepted->generations.at(0));
}

TEST(Service, TokenizesATextWithItsBeginning) {
  FakeService fake;
  ASSERT_TRUE(generate(fake, prompt("<s>"), std::make_shared<Recorder>()).ok());
  EXPECT_THAT(fake.engine->request(0).prompt, ElementsAre(256, '<', 's', '>'))
      << "special tokens in a text are characters";
  GenerateRequest bare = prompt("<s>");
  bare.prompt_options = {.add_bos = false, .parse_special = true};
  ASSERT_TRUE(generate(fake, bare, std::make_shared<Recorder>()).ok());
  EXPECT_THAT(fake.engine->request(1).prompt, ElementsAre(256));
}

TEST(Service, LeavesTheBeginningOfAChatToItsTemplate) {
  FakeService fake;
  const Conversation messages{{{"u", "<s>"}}};
  ASSERT_TRUE(generate(fake, prompt(messages), std::make_shared<Recorder>()).ok());
  const std::vector<int32_t> ids = fake.engine->request(0).prompt;
  EXPECT_THAT(std::vector<int32_t>(ids.begin(), ids.begin() + 7),
              ElementsAre(256, '[', 'u', ']', '<', 's', '>'));
}

TEST(Service, ReportsWhatTheTemplateRefuses) {
  FakeService fake;
  const Conversation messages{{{"villain", "x"}}};
  const auto result = generate(fake, prompt(messages), std::make_shared<Recorder>());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("no villains"));
}

TEST(Service, RefusesChatsOfAModelWithoutATemplate) {
  FakeService fake(/*chats=*/false);
  const Conversation messages{{{"user", "x"}}};
  const auto result = generate(fake, prompt(messages), std::make_shared<Recorder>());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(), HasSubstr("no chat template"));
}

TEST(Service, GivesTheEngineEveryField) {
  FakeService fake;
  GenerateRequest request = prompt(std::vector<int32_t>{1, 2});
  request.sampling.top_k = 9;
  request.stop_ids = {4};
  request.ignore_eos = true;
  request.priority = -1;
  request.max_tokens = 33;
  request.seed = 12;
  request.deadline = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  const auto generation = generate(fake, request, std::make_shared<Recorder>());
  ASSERT_TRUE(generation.ok());
  const EngineRequest seen = fake.engine->request(generation->id);
  EXPECT_THAT(seen.prompt, ElementsAre(1, 2));
  EXPECT_EQ(seen.sampling.top_k, 9);
  EXPECT_THAT(seen.stop_ids, ElementsAre(4));
  EXPECT_TRUE(seen.ignore_eos);
  EXPECT_EQ(seen.priority, -1);
  EXPECT_EQ(seen.max_tokens, 33);
  EXPECT_EQ(seen.sampling.seed, 12u);
  EXPECT_EQ(seen.deadline, request.deadline);
}

TEST(Service, FillsTheContextWhenNoLimitIsGiven) {
  FakeService fake;
  ASSERT_TRUE(generate(fake, prompt("abc"), std::make_shared<Recorder>()).ok());
  EXPECT_EQ(fake.engine->request(0).max_tokens, fake.engine->options().context - 4);
}

TEST(Service, RefusesWhatTheContextHasNoRoomForWithBothNumbers) {
  FakeService fake;
  const std::vector<int32_t> whole(static_cast<std::size_t>(fake.engine->options().context), 'a');
  const absl::Status refused = generate(fake, prompt(whole), std::make_shared<Recorder>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("prompt has 100000 tokens"), HasSubstr("is 100000 tokens")));
  GenerateRequest only_read = prompt(whole);
  only_read.max_tokens = 0;
  EXPECT_TRUE(generate(fake, only_read, std::make_shared<Recorder>()).ok());
  std::vector<int32_t> fitting(whole);
  fitting.pop_back();
  EXPECT_TRUE(generate(fake, prompt(fitting), std::make_shared<Recorder>()).ok());
  EXPECT_EQ(fake.engine->request(1).max_tokens, 1);
}

TEST(Service, GeneratesASequenceForEachSink) {
  FakeService fake;
  const std::vector<std::shared_ptr<Recorder>> sinks{std::make_shared<Recorder>(),
                                                     std::make_shared<Recorder>()};
  const auto accepted = fake.service->generate(prompt("a"), {sinks.begin(), sinks.end()});
  ASSERT_TRUE(accepted.ok());
  EXPECT_THAT(accepted->prompt, ElementsAre(256, 'a'));
  ASSERT_EQ(accepted->generations.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    fake.engine->emit(accepted->generations[i].id, std::string(1, static_cast<char>('x' + i)));
    EXPECT_THAT(sinks[i]->tokens, ElementsAre(static_cast<int32_t>('x' + i)));
  }
}

TEST(Service, PassesEventsOnAndCountsThem) {
  FakeService fake;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(generate(fake, prompt("a"), sink).ok());
  fake.engine->emit(0, "xy");
  fake.engine->emit(0, TokenLogprobs{.chosen = {'z', -1.0f}, .top = {}});
  fake.engine->finish(0, FinishReason::length);
  EXPECT_THAT(sink->tokens, ElementsAre('x', 'y', 'z'));
  EXPECT_THAT(sink->logprobs_of, ElementsAre('z'));
  ASSERT_EQ(sink->finishes.size(), 1u);
  EXPECT_EQ(sink->finishes[0].reason, FinishReason::length);
  const std::string metrics = fake.service->expose_metrics();
  EXPECT_THAT(metrics, HasSubstr("vllm:time_to_first_token_seconds_count{model_name=\"fake\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("vllm:inter_token_latency_seconds_count{model_name=\"fake\"} 2"));
  EXPECT_THAT(metrics, HasSubstr("vllm:e2e_request_latency_seconds_count{model_name=\"fake\"} 1"));
  EXPECT_THAT(metrics,
              testing::ContainsRegex("vllm:request_success_total.*finished_reason=\"length\".* 1"));
  for (const char* line : {"vllm:request_decode_time_seconds_count{model_name=\"fake\"} 1",
                           "vllm:request_queue_time_seconds_sum{model_name=\"fake\"} 0.25",
                           "vllm:request_prefill_time_seconds_sum{model_name=\"fake\"} 0.5",
                           "vllm:request_time_per_output_token_seconds_count{model_name=\"fake\"} ",
                           "vllm:request_params_n_sum{model_name=\"fake\"} 1",
                           "vllm:request_params_max_tokens_sum{model_name=\"fake\"} 99998",
                           "vllm:prefix_cache_queries_total{model_name=\"fake\"} 2",
                           "vllm:prefix_cache_hits_total{model_name=\"fake\"} 0"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST(Service, CountsARequestStoppedByItsTextAsStopped) {
  FakeService fake;
  GenerateRequest request = prompt("a");
  request.stop = {"END"};
  auto generation = generate(fake, request, std::make_shared<Recorder>());
  ASSERT_TRUE(generation.ok());
  for (const char c : std::string_view("xEND")) {
    generation->text.push(c);
  }
  ASSERT_TRUE(generation->text.stopped());
  fake.service->stop(*generation);
  EXPECT_TRUE(fake.engine->cancelled(generation->id));
  fake.engine->finish(generation->id, FinishReason::cancelled);
  const std::string metrics = fake.service->expose_metrics();
  EXPECT_THAT(metrics, testing::ContainsRegex("finished_reason=\"stop\".* 1"));
  EXPECT_THAT(metrics, testing::ContainsRegex("finished_reason=\"abort\".* 0"));
}

TEST(Service, ReportsAndCountsWhatTheEngineRefuses) {
  FakeService fake;
  fake.engine->refuse_with(absl::ResourceExhaustedError("the queue is full"));
  const auto result = generate(fake, prompt("a"), std::make_shared<Recorder>());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(fake.service->expose_metrics(),
              testing::ContainsRegex("tessera:requests_rejected_total.*RESOURCE_EXHAUSTED.* 1"));
}

TEST(Service, DetokenizesWithSpecialTokensAndRefusesStrangeIds) {
  FakeService fake;
  const std::vector<int32_t> ids{256, 'h', 'i'};
  EXPECT_EQ(fake.service->prompts().detokenize(ids).value(), "<s>hi");
  for (const int32_t bad : {-1, 260}) {
    const std::vector<int32_t> some{'a', bad};
    EXPECT_THAT(fake.service->prompts().detokenize(some).status().message(),
                HasSubstr("token 1 is"));
  }
}

// The output of a model may be padded. Its answers may have such ids.
TEST(Service, DetokenizesRowsOfTheModelBeyondTheTokenizerAsNoText) {
  FakeService fake;
  ASSERT_EQ(fake.engine->config().vocab, fake.service->tokenizer().vocab_size() + 2);
  const std::vector<int32_t> ids{'h', 258, 'i', 259};
  EXPECT_EQ(fake.service->prompts().detokenize(ids).value(), "hi");
  EXPECT_TRUE(fake.service->prompts().text_room().for_tokens(ids, /*texts=*/true).ok());
}

// One token of the request may be hundreds of bytes of text.
TEST(Service, ComputesNoTextThatIsTooLargeOrFindsNoRoom) {
  ByteBudget budget(1 << 10);
  const TextRoom room(FakeTokenizer(), 0, 1 << 12, &budget);
  const std::vector<int32_t> few(100, 'a');
  const std::vector<int32_t> many(1000, 'a');
  EXPECT_EQ(room.for_text(many).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(room.for_text(many).status().message(),
              HasSubstr("the text of these 1000 tokens may take 6000 bytes"));
  EXPECT_THAT(room.for_tokens(many, false).status().message(), HasSubstr("may take 16000 bytes"));
  EXPECT_EQ(budget.used(), 0);
  {
    const auto held = room.for_text(few);
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(budget.used(), 600);
    EXPECT_EQ(room.for_text(few).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_THAT(room.for_tokens(few, true).status().message(), HasSubstr("may take 8200 bytes"));
}

TEST(Service, IsReadyUntilItDrains) {
  FakeService fake;
  EXPECT_TRUE(fake.service->ready());
  fake.service->drain();
  EXPECT_FALSE(fake.service->ready());
  const auto result = generate(fake, prompt("a"), std::make_shared<Recorder>());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
}

TEST(Metrics, ShowsTheEngineUnderTheNamesGatewaysKnow) {
  FakeService fake;
  const std::string metrics = fake.service->expose_metrics();
  for (const char* line : {
           "vllm:num_requests_running{model_name=\"fake\"} 0",
           "vllm:num_requests_waiting{model_name=\"fake\"} 3",
           "vllm:kv_cache_usage_perc{model_name=\"fake\"} 0.25",
           "vllm:gpu_cache_usage_perc{model_name=\"fake\"} 0.25",
           "vllm:num_preemptions_total{model_name=\"fake\"} 2",
           "vllm:prompt_tokens_total{model_name=\"fake\"} 11",
           "vllm:generation_tokens_total{model_name=\"fake\"} 13",
           "# TYPE vllm:num_requests_running gauge",
           "# TYPE vllm:num_preemptions_total counter",
           "# TYPE vllm:time_to_first_token_seconds histogram",
           "tessera:kv_bytes{model_name=\"fake\",format=\"f16\",state=\"private\"} 20480",
           "tessera:kv_bytes{model_name=\"fake\",format=\"f16\",state=\"shared\"} 5120",
           "tessera:kv_tightenings_total{model_name=\"fake\"} 4",
           "tessera:kv_demotions_total{model_name=\"fake\"} 17",
           "tessera:kv_dropped_tokens_total{model_name=\"fake\"} 5",
           "tessera:kv_bytes{model_name=\"fake\",format=\"any\",state=\"free\"} 76800",
           "vllm:cache_config_info{model_name=\"fake\",block_size=\"64\",cache_dtype=\"k8v4\","
           "enable_prefix_caching=\"False\",num_gpu_blocks=\"25\"} 1",
           "tessera:kv_bytes{model_name=\"fake\",format=\"any\",state=\"window\"} 4096",
           "tessera:kv_bytes{model_name=\"fake\",format=\"any\",state=\"tables\"} 512",
       }) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST(Metrics, EveryFamilyIsDescribedOnce) {
  FakeService fake;
  const std::string metrics = fake.service->expose_metrics();
  std::set<std::string> seen;
  for (std::size_t at = metrics.find("# TYPE "); at != std::string::npos;
       at = metrics.find("# TYPE ", at + 1)) {
    const std::string name = metrics.substr(at + 7, metrics.find(' ', at + 7) - at - 7);
    EXPECT_TRUE(seen.insert(name).second) << name;
  }
  EXPECT_GT(seen.size(), 10u);
}

}  // namespace
}  // namespace tessera
