// Sampling parameters of a model's files are those of requests that leave them out, in every
// dialect.
#include "server/request/model_sampling.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/grpc/grpc_listener.h"
#include "server/http/listener.h"
#include "server/routes/routes.h"
#include "server/settings/settings.h"
#include "server/start/sampling_of_model.h"
#include "tessera/v1/inference.grpc.pb.h"
#include "tests/models/temporary_directory.h"
#include "tests/server/fake_engine.h"
#include "tests/server/http_client.h"

namespace tessera {
namespace {

using nlohmann::json;

SamplingParams recommended() {
  return with_recommended({{"temperature", 0.7},
                           {"top_p", 0.8},
                           {"top_k", 20},
                           {"min_p", 0.05},
                           {"repetition_penalty", 1.1}});
}

// Both front ends of a service whose model recommends parameters.
class ModelSampling : public testing::Test {
 protected:
  ModelSampling() {
    fake_.engine->answer_with([](const EngineRequest&) { return "a"; });
    routes_.attach(*fake_.service);
    HttpOptions http;
    http.port = 0;
    http_ = *HttpListener::start(http, routes_, fake_.work);
    GrpcOptions grpc;
    grpc.address = "127.0.0.1";
    grpc.port = 0;
    grpc_ = *GrpcListener::start(grpc, *fake_.service, fake_.work);
  }
  ~ModelSampling() override { http_->stop(); }

  std::string post(const std::string& path, const std::string& body) {
    HttpClient client(http_->port());
    const HttpClientResponse response = client.post(path, body);
    EXPECT_EQ(response.status, 200) << path << response.body;
    return response.body;
  }
  void call(const v1::GenerateRequest& request) {
    const auto stub = v1::Inference::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(grpc_->port()), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
  }
  // Returns: the parameters of the last request of the engine.
  SamplingParams last() const {
    return fake_.engine->request(fake_.engine->requests() - 1).sampling;
  }

  FakeService fake_{true, {}, std::make_unique<FakeTokenizer>(), recommended()};
  Routes routes_{RoutesOptions{}};
  std::unique_ptr<HttpListener> http_;
  std::unique_ptr<GrpcListener> grpc_;
};

struct Dialect {
  const char* path;
  std::string body;  // without its end
};

const Dialect kDialects[] = {
    {"/v1/completions", R"({"prompt": "a", "max_tokens": 1)"},
    {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1)"},
    {"/v1/responses", R"({"input": "a", "max_output_tokens": 1)"},
    {"/v1/messages", R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1)"}};

TEST_F(ModelSampling, IsThatOfRequestsThatLeaveItOut) {
  for (const Dialect& dialect : kDialects) {
    post(dialect.path, dialect.body + "}");
    const SamplingParams sampling = last();
    EXPECT_EQ(sampling.temperature, 0.7f) << dialect.path;
    EXPECT_EQ(sampling.top_p, 0.8f) << dialect.path;
    EXPECT_EQ(sampling.top_k, 20) << dialect.path;
    EXPECT_EQ(sampling.min_p, 0.05f) << dialect.path;
    EXPECT_EQ(sampling.repetition_penalty, 1.1f) << dialect.path;
    EXPECT_EQ(sampling.presence_penalty, 0) << dialect.path;
  }
  v1::GenerateRequest request;
  request.set_text("a");
  call(request);
  EXPECT_EQ(last().temperature, 0.7f);
  EXPECT_EQ(last().top_k, 20);
  EXPECT_EQ(last().repetition_penalty, 1.1f);
}

// The usual defaults count as well as any other value.
TEST_F(ModelSampling, GivesWayToEachParameterOfARequest) {
  for (const Dialect& dialect : kDialects) {
    post(dialect.path, dialect.body + R"(, "temperature": 1, "top_k": -1})");
    EXPECT_EQ(last().temperature, 1) << dialect.path;
    EXPECT_EQ(last().top_k, 0) << dialect.path;
    EXPECT_EQ(last().top_p, 0.8f) << dialect.path;
    post(dialect.path, dialect.body + R"(, "temperature": null, "top_p": 1})");
    EXPECT_EQ(last().temperature, 0.7f) << dialect.path << ": null is left out";
    EXPECT_EQ(last().top_p, 1) << dialect.path;
  }
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_repetition_penalty(1);
  call(request);
  EXPECT_EQ(last().temperature, 0);
  EXPECT_EQ(last().top_k, 0);
  EXPECT_EQ(last().repetition_penalty, 1);
  EXPECT_EQ(last().top_p, 0.8f);
}

TEST_F(ModelSampling, IsShownInPropsAndInResponses) {
  HttpClient client(http_->port());
  const json props = json::parse(client.get("/props").body);
  const json& params = props.at("default_generation_settings").at("params");
  EXPECT_EQ(params.at("temperature"), 0.7);
  EXPECT_EQ(params.at("top_k"), 20);
  EXPECT_EQ(params.at("repetition_penalty"), 1.1);
  const json response =
      json::parse(post("/v1/responses", R"({"input": "a", "max_output_tokens": 1, "top_p": 0.5})"));
  EXPECT_EQ(response.at("temperature"), 0.7);
  EXPECT_EQ(response.at("top_p"), 0.5);
}

TEST(RecommendedParameters, OutsideTheirRangeAreLeftOut) {
  const SamplingParams params = with_recommended({{"temperature", 0},
                                                  {"top_p", 1.5},
                                                  {"top_k", -1},
                                                  {"min_p", -1},
                                                  {"repetition_penalty", 0},
                                                  {"typical_p", 0.9}});
  EXPECT_EQ(params.temperature, 0) << "greedy";
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.top_k, 0) << "all";
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(params.repetition_penalty, 1);
  EXPECT_EQ(params.typical_p, 0.9f);
  EXPECT_EQ(with_recommended({{"top_k", 2.5}}).top_k, 0);
  EXPECT_EQ(with_recommended({{"top_k", 1e12}}).top_k, 0);
}

TEST(RecommendedParameters, AreNotReadIfTheSettingsSaySo) {
  const TemporaryDirectory folder;
  write_file(folder / "generation_config.json", R"({"temperature": 0.5})");
  Settings settings;
  settings.model = folder.path();
  EXPECT_EQ(sampling_of_model(settings)->temperature, 0.5f);
  for (const char* none : {"none", "vllm"}) {
    ASSERT_TRUE(apply_yaml(std::string("generation-config: ") + none, "x", settings).ok());
    EXPECT_EQ(sampling_of_model(settings)->temperature, 1);
  }
  ASSERT_TRUE(apply_yaml("generation-config: auto", "x", settings).ok());
  EXPECT_EQ(sampling_of_model(settings)->temperature, 0.5f);
}

}  // namespace
}  // namespace tessera
