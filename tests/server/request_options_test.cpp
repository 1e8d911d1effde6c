// Every option of engine/request_options.h comes through the HTTP body, through the protobuf
// message, through the service, and through the bytes between ranks.

#include "engine/request_options.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/request_bytes.h"
#include "server/grpc/wire.h"
#include "server/openai/request.h"
#include "tests/engine/recording_sink.h"
#include "tests/server/fake_engine.h"
#include "tests/server/option_texts.h"

namespace tessera {
namespace {

// A value that is not the default: a field of the HTTP body, and fields of the protobuf message.
struct Sample {
  std::string json;
  std::string proto;
};

// Special options, by name, and a plain one with an effect on another. A new special one without a
// line here fails.
const std::map<std::string, Sample, std::less<>> kSpecialSamples = {
    {"seed", {R"("seed":7)", "sampling { seed: 7 }"}},
    {"logit_bias",
     {R"("logit_bias":{"4":-1.5})", "sampling { logit_bias { key: 4 value: -1.5 } }"}},
    {"top_logprobs", {R"("logprobs":3)", "logprobs: 3"}},
    {"bad_words", {R"("bad_words":["x"])", R"(sampling { bad_words: "x" })"}},
    {"dry_multiplier",  // without the breakers that it has else
     {R"("dry_multiplier":2,"dry_sequence_breakers":[])",
      "sampling { dry_multiplier: 2 dry_sequence_breakers {} }"}},
    {"dry_sequence_breakers",
     {R"("dry_sequence_breakers":["x"])", R"(sampling { dry_sequence_breakers { texts: "x" } })"}},
    {"cache_salt", {R"("cache_salt":"x")", R"(cache { salt: "x" })"}},
    {"cache",
     {R"("cache_prompt":false,"cache":{"pin":true,"ttl":60})",
      "cache { use: false pin: true ttl_seconds: 60 }"}},
    {"cache_accept", {R"("cache":{"accept":"k4v2"})", R"(cache { accept: "k4v2" })"}},
};

// Values inside an option's range, by the type of its member.
std::string plain_value(const Option&, bool value) {
  return value ? "false" : "true";
}
std::string plain_value(const Option&, const std::vector<int32_t>&) {
  return "[5,6]";
}
std::string plain_value(const Option& option, float value) {
  const double high = std::min(option.range.max, 8.0);
  return fmt::format("{}", high == value ? high / 2 : high);
}
std::string plain_value(const Option&, int32_t value) {
  return fmt::format("{}", value + 3);
}
std::string plain_value(const Option& option, const std::optional<int32_t>&) {
  return plain_value(option, 0);
}

std::string plain_value(const Option& option, const std::optional<float>&) {
  return plain_value(option, 0.0f);
}

// Collects a sample of every option.
class Samples {
 public:
  template <class T>
  void operator()(const SpecialOption& option, const T&) {
    const auto found = kSpecialSamples.find(option.name);
    ASSERT_NE(found, kSpecialSamples.end()) << option.name << " has no sample here";
    samples[std::string(option.name)] = found->second;
  }
  template <class T>
  void operator()(const Option& option, const T& member) {
    const std::string name(option.name);
    if (const auto found = kSpecialSamples.find(name); found != kSpecialSamples.end()) {
      samples[name] = found->second;
      return;
    }
    const std::string value = plain_value(option, member);
    const std::string field = name + ": " + value;
    const bool sampling = v1::SamplingParams::descriptor()->FindFieldByName(name) != nullptr;
    ASSERT_TRUE(sampling || v1::GenerateRequest::descriptor()->FindFieldByName(name) != nullptr)
        << name << " is no field of the proto";
    samples[name] = {'"' + name + "\":" + value, sampling ? "sampling { " + field + " }" : field};
  }

  std::map<std::string, Sample> samples;
};

// Returns: the request as the engine gets it, with a seed unless the request has one.
EngineRequest submitted(const absl::StatusOr<GenerateRequest>& request) {
  EXPECT_TRUE(request.ok()) << request.status();
  GenerateRequest generate = request.value_or(GenerateRequest());
  generate.prompt = std::vector<int32_t>{1};
  generate.max_tokens = 10;
  generate.seed = generate.seed.value_or(5);
  FakeService fake;
  EXPECT_TRUE(
      fake.service->generate(std::move(generate), {std::make_shared<RecordingSink>()}).ok());
  return fake.engine->request(0);
}

EngineRequest from_json(const std::string& fields) {
  const auto request =
      parse_completion_request(R"({"prompt":"a")" + (fields.empty() ? "" : "," + fields) + "}");
  return submitted(request.ok() ? absl::StatusOr<GenerateRequest>(request->each)
                                : request.status());
}

EngineRequest from_proto(const std::string& fields) {
  v1::GenerateRequest message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString("text: 'a' " + fields, &message))
      << fields;
  const auto request = parse_generate_request(message);
  return submitted(request.ok() ? absl::StatusOr<GenerateRequest>(request->each)
                                : request.status());
}

EngineRequest from_bytes(const EngineRequest& request) {
  std::vector<std::byte> bytes;
  append_request(request, bytes);
  std::span<const std::byte> left(bytes);
  return take_request(left, nullptr);
}

// Names of the options that are not as in `base`.
std::vector<std::string> changed(const Texts& base, const Texts& texts) {
  std::vector<std::string> names;
  for (const auto& [name, value] : texts) {
    if (base.at(name) != value) {
      names.push_back(name);
    }
  }
  return names;
}

TEST(RequestOptions, AreReadFromJsonAndProtobufAndGoToOtherRanks) {
  Samples walk;
  const RequestOptions defaults;
  visit_options(walk, defaults);
  ASSERT_FALSE(HasFatalFailure());
  const Texts base = texts_of(from_json(""));
  EXPECT_EQ(base, texts_of(from_proto(""))) << "the front ends differ in their defaults";
  EXPECT_EQ(walk.samples.size(), base.size());
  for (const auto& [name, sample] : walk.samples) {
    SCOPED_TRACE(name);
    const EngineRequest request = from_json(sample.json);
    EXPECT_EQ(changed(base, texts_of(request)), std::vector{name});
    EXPECT_EQ(texts_of(from_proto(sample.proto)), texts_of(request));
    EXPECT_EQ(texts_of(from_bytes(request)), texts_of(request));
  }
}

TEST(RequestOptions, HaveOneRangeForBothFrontEnds) {
  const auto refusal = parse_completion_request(R"({"prompt":"a","temperature":101})").status();
  EXPECT_EQ(refusal.message(), "temperature must be a number from 0 to 100, not 101");
  SamplingParams params;
  params.temperature = 101;
  EXPECT_EQ(check_sampling(params, 10).message(),
            "temperature is 101, it must be a number from 0 to 100");
}

}  // namespace
}  // namespace tessera
