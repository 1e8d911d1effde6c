// grpc.health.v1 and grpc.reflection, as clients with the usual stubs call them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
namespace health_v1 = grpc::health::v1;
namespace reflection = grpc::reflection::v1;

class GrpcHealth : public Grpc {
 protected:
  GrpcHealth() : health_(health_v1::Health::NewStub(channel_)) {}

  std::map<std::string, int> list() {
    grpc::ClientContext context;
    health_v1::HealthListResponse response;
    EXPECT_TRUE(health_->List(&context, {}, &response).ok());
    std::map<std::string, int> all;
    for (const auto& [name, status] : response.statuses()) {
      all[name] = status.status();
    }
    return all;
  }

  std::unique_ptr<health_v1::Health::Stub> health_;
};

TEST_F(GrpcHealth, ListsEveryService) {
  using Statuses = std::map<std::string, int>;
  EXPECT_EQ(list(), (Statuses{{"", 1}, {"tessera.v1.Inference", 1}}));
  listener_->set_not_serving();
  EXPECT_EQ(list(), (Statuses{{"", 2}, {"tessera.v1.Inference", 2}}));
}

TEST_F(GrpcHealth, TellsWatchersEachChangeAndTheEnd) {
  health_v1::HealthCheckRequest request;
  request.set_service("tessera.v1.Inference");
  grpc::ClientContext context;
  const auto watch = health_->Watch(&context, request);
  health_v1::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), health_v1::HealthCheckResponse::SERVING);
  listener_->set_not_serving();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), health_v1::HealthCheckResponse::NOT_SERVING);
  listener_->set_not_serving();  // no change: nothing is sent
  std::thread stopping([&] { listener_->stop(); });
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stopping.join();
}

TEST_F(GrpcHealth, KnowsNoOtherService) {
  health_v1::HealthCheckRequest request;
  request.set_service("no.such.Service");
  health_v1::HealthCheckResponse response;
  grpc::ClientContext check;
  EXPECT_EQ(health_->Check(&check, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  const auto watch = health_->Watch(&context, request);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), health_v1::HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
}

TEST_F(GrpcHealth, OutlivesWatchersThatGo) {
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    const auto watch = health_->Watch(&context, {});
    health_v1::HealthCheckResponse response;
    EXPECT_TRUE(watch->Read(&response));
    context.TryCancel();
  }
  listener_->set_not_serving();
  EXPECT_EQ(list().at(""), 2);
}

// Asks one stream of reflection several questions.
template <class Service>
class Questions {
 public:
  explicit Questions(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(Service::NewStub(channel)), stream_(stub_->ServerReflectionInfo(&context_)) {}
  ~Questions() {
    stream_->WritesDone();
    EXPECT_TRUE(stream_->Finish().ok());
  }

  reflection::ServerReflectionResponse ask(const reflection::ServerReflectionRequest& request) {
    EXPECT_TRUE(stream_->Write(request));
    reflection::ServerReflectionResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<typename Service::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<reflection::ServerReflectionRequest,
                                           reflection::ServerReflectionResponse>>
      stream_;
};

// Builds the files of a response in a pool of their own, as a client does.
void build(const reflection::ServerReflectionResponse& response,
           google::protobuf::DescriptorPool& pool) {
  const auto& files = response.file_descriptor_response().file_descriptor_proto();
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    google::protobuf::FileDescriptorProto proto;
    ASSERT_TRUE(proto.ParseFromString(*file));
    ASSERT_NE(pool.BuildFile(proto), nullptr) << proto.name();
  }
}

template <class Service>
void expect_descriptions(const std::shared_ptr<grpc::Channel>& channel) {
  Questions<Service> questions(channel);
  reflection::ServerReflectionRequest request;
  request.set_list_services("");
  std::vector<std::string> names;
  const reflection::ServerReflectionResponse listed = questions.ask(request);
  for (const auto& service : listed.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, IsSupersetOf({"tessera.v1.Inference", "grpc.health.v1.Health",
                                   "grpc.reflection.v1.ServerReflection",
                                   "grpc.reflection.v1alpha.ServerReflection"}));
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    request.set_file_containing_symbol(name);
    google::protobuf::DescriptorPool pool;
    build(questions.ask(request), pool);
    EXPECT_NE(pool.FindServiceByName(name), nullptr);
  }
  request.set_file_by_filename("tessera/v1/inference.proto");
  google::protobuf::DescriptorPool pool;
  build(questions.ask(request), pool);
  EXPECT_NE(pool.FindMessageTypeByName("tessera.v1.GenerateRequest"), nullptr);
}

TEST_F(Grpc, ReflectionDescribesEveryServiceUnderBothNames) {
  expect_descriptions<reflection::ServerReflection>(channel_);
  expect_descriptions<grpc::reflection::v1alpha::ServerReflection>(channel_);
}

TEST_F(Grpc, ReflectionAnswersWhatItDoesNotKnowAndGoesOn) {
  Questions<reflection::ServerReflection> questions(channel_);
  reflection::ServerReflectionRequest request;
  EXPECT_EQ(questions.ask(request).error_response().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto expect_not_found = [&] {
    EXPECT_EQ(questions.ask(request).error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  };
  request.set_file_containing_symbol("no.such.Symbol");
  expect_not_found();
  request.set_file_by_filename("no_such.proto");
  expect_not_found();
  request.mutable_file_containing_extension()->set_containing_type("tessera.v1.Chat");
  expect_not_found();
  request.set_all_extension_numbers_of_type("tessera.v1.Chat");
  EXPECT_EQ(questions.ask(request).all_extension_numbers_response().base_type_name(),
            "tessera.v1.Chat");
}

}  // namespace
}  // namespace tessera
