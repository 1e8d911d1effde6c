#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/retry_after.h"
#include "tests/server/certificate.h"
#include "tests/server/grpc_exchange.h"
#include "tests/server/grpc_fixture.h"
#include "tests/server/written_tenants.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

const std::string kListServices = {0x3a, 0x00};
const std::string kServing = "\x08\x01";

class GrpcKeys : public Grpc {
 protected:
  GrpcKeys() { start({.address = "127.0.0.1", .port = 0, .api_keys = ApiKeys({"one", "two"})}); }
};

void show(grpc::ClientContext& context, const std::string& authorization) {
  if (!authorization.empty()) {
    context.AddMetadata("authorization", authorization);
  }
}

TEST_F(GrpcKeys, OpenEveryCall) {
  for (const char* right : {"Bearer one", "bearer two"}) {
    grpc::ClientContext context;
    show(context, right);
    v1::TokenizeRequest request;
    request.set_text("a");
    v1::TokenizeResponse response;
    EXPECT_TRUE(stub_->Tokenize(&context, request, &response).ok());
    EXPECT_EQ(response.ids_size(), 2);
  }
  grpc::ClientContext context;
  show(context, "Bearer one");
  auto reader = stub_->Generate(&context, text_request("hi"));
  engine_->finish(next_request(), FinishReason::stop);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcKeys, LeaveEveryCallWithoutOneUnauthenticated) {
  for (const char* wrong : {"", "Bearer three", "one", "Basic OmE="}) {
    SCOPED_TRACE(wrong);
    const auto refused = [&](const auto& call) {
      grpc::ClientContext context;
      show(context, wrong);
      const grpc::Status status = call(context);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
      EXPECT_THAT(status.error_message(), HasSubstr("Bearer KEY"));
    };
    using C = grpc::ClientContext;
    refused([&](C& c) {
      auto reader = stub_->Generate(&c, text_request("hi"));
      v1::GenerateResponse message;
      EXPECT_FALSE(reader->Read(&message));
      return reader->Finish();
    });
    v1::AbortResponse aborted;
    refused([&](C& c) { return stub_->Abort(&c, {}, &aborted); });
    v1::TokenizeResponse tokens;
    refused([&](C& c) { return stub_->Tokenize(&c, {}, &tokens); });
    v1::DetokenizeResponse text;
    refused([&](C& c) { return stub_->Detokenize(&c, {}, &text); });
    v1::GetModelInfoResponse model;
    refused([&](C& c) { return stub_->GetModelInfo(&c, {}, &model); });
    EXPECT_EQ(model.name(), "");
    v1::GetServerInfoResponse server;
    refused([&](C& c) { return stub_->GetServerInfo(&c, {}, &server); });
    v1::GetCacheInfoResponse cache;
    refused([&](C& c) { return stub_->GetCacheInfo(&c, {}, &cache); });
    v1::FlushCacheResponse flushed;
    refused([&](C& c) { return stub_->FlushCache(&c, {}, &flushed); });
  }
  EXPECT_EQ(engine_->requests(), 0U);
  EXPECT_EQ(engine_->flushes(), 0);
  EXPECT_TRUE(listener_->drain(kPatience));
}

TEST_F(GrpcKeys, HealthNeedsNoneAndReflectionDoes) {
  EXPECT_EQ(health(channel_, ""), kServing);
  for (const char* version : {"v1", "v1alpha"}) {
    const std::string method =
        absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo");
    EXPECT_EQ(exchange(channel_, method, kListServices), std::nullopt);
    const auto services = exchange(channel_, method, kListServices, "Bearer two");
    ASSERT_TRUE(services);
    EXPECT_THAT(*services, HasSubstr("tessera.v1.Inference"));
  }
}

class GrpcTenants : public Grpc {
 protected:
  GrpcTenants() {
    start({.address = "127.0.0.1", .port = 0, .api_keys = WrittenTenants(kTwoTenants).keys()});
  }
};

constexpr char kA[] = "Bearer a-long-key-of-tenant-a";
constexpr char kB[] = "Bearer a-long-key-of-tenant-b";

TEST_F(GrpcTenants, OnlyKeysWithTheRightFlushTheCache) {
  v1::FlushCacheResponse response;
  grpc::ClientContext of_b;
  show(of_b, kB);
  const grpc::Status refused = stub_->FlushCache(&of_b, {}, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("admin"));
  EXPECT_EQ(engine_->flushes(), 0);
  grpc::ClientContext of_a;
  show(of_a, kA);
  EXPECT_TRUE(stub_->FlushCache(&of_a, {}, &response).ok());
  EXPECT_EQ(engine_->flushes(), 1);
}

TEST_F(GrpcTenants, AbortTheirOwnRequestsOnly) {
  v1::GenerateRequest request = text_request("hi");
  request.set_request_id("same name");
  grpc::ClientContext of_a;
  show(of_a, kA);
  const auto reader_a = stub_->Generate(&of_a, request);
  const RequestId id_a = next_request();
  grpc::ClientContext of_b;
  show(of_b, kB);
  const auto reader_b = stub_->Generate(&of_b, request);  // names are a tenant's own
  const RequestId id_b = next_request();
  grpc::ClientContext abort;
  show(abort, kB);
  v1::AbortRequest which;
  which.set_request_id("same name");
  v1::AbortResponse aborted;
  EXPECT_TRUE(stub_->Abort(&abort, which, &aborted).ok());
  EXPECT_TRUE(engine_->wait_for_cancel(id_b));
  EXPECT_FALSE(engine_->cancelled(id_a));
  engine_->finish(id_a, FinishReason::stop);
  engine_->finish(id_b, FinishReason::cancelled);
  v1::GenerateResponse message;
  while (reader_a->Read(&message)) {
  }
  EXPECT_TRUE(reader_a->Finish().ok());
  EXPECT_EQ(message.finish_reason(), v1::FINISH_REASON_STOP);
  while (reader_b->Read(&message)) {
  }
  EXPECT_TRUE(reader_b->Finish().ok());
}

TEST_F(GrpcTenants, HaveIdsQueueTimeoutsAndTimesOfRetries) {
  const auto begin = std::chrono::steady_clock::now();
  grpc::ClientContext context;
  show(context, kA);
  context.AddMetadata("x-request-id", "mine-1");
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  context.AddMetadata("traceparent", trace);
  context.AddMetadata("x-queue-timeout", "2.5");
  auto reader = stub_->Generate(&context, text_request("hi"));
  const RequestId id = next_request();
  const EngineRequest request = engine_->request(id);
  ASSERT_TRUE(request.start_by);
  EXPECT_GE(*request.start_by, begin + std::chrono::milliseconds(2500));
  EXPECT_LE(*request.start_by, std::chrono::steady_clock::now() + std::chrono::milliseconds(2500));
  EXPECT_EQ(request.tenant.id, 1);
  engine_->finish(id, FinishReason::stop);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "mine-1");
  EXPECT_EQ(context.GetServerInitialMetadata().find("traceparent")->second, trace);

  engine_->refuse_with(with_retry_after(absl::ResourceExhaustedError("overloaded"),
                                        std::chrono::milliseconds(7200)));
  grpc::ClientContext later;
  show(later, kA);
  auto refused = stub_->Generate(&later, text_request("hi"));
  EXPECT_FALSE(refused->Read(&message));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(later.GetServerTrailingMetadata().find("grpc-retry-pushback-ms")->second, "7200");

  grpc::ClientContext wrong;
  show(wrong, kA);
  wrong.AddMetadata("x-queue-timeout", "soon");
  auto invalid = stub_->Generate(&wrong, text_request("hi"));
  EXPECT_FALSE(invalid->Read(&message));
  const grpc::Status status = invalid->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("x-queue-timeout"));
}

TEST_F(GrpcTenants, AreRefusedBeforeTheWorkWhenTheirRateIsUsedUp) {
  const auto tokenize = [&](grpc::ClientContext& context) {
    v1::TokenizeRequest request;
    request.set_text("a");
    v1::TokenizeResponse response;
    return stub_->Tokenize(&context, request, &response);
  };
  grpc::ClientContext first;
  show(first, kB);
  EXPECT_TRUE(tokenize(first).ok()) << "it counts as a request";
  using Call = std::function<grpc::Status(grpc::ClientContext&)>;
  for (const Call& call : std::vector<Call>{tokenize,
                                            [&](grpc::ClientContext& context) {
                                              v1::DetokenizeResponse response;
                                              return stub_->Detokenize(&context, {}, &response);
                                            },
                                            [&](grpc::ClientContext& context) {
                                              v1::EmbedResponse response;
                                              return stub_->Embed(&context, {}, &response);
                                            },
                                            [&](grpc::ClientContext& context) {
                                              auto reader =
                                                  stub_->Generate(&context, text_request("hi"));
                                              v1::GenerateResponse message;
                                              EXPECT_FALSE(reader->Read(&message));
                                              return reader->Finish();
                                            }}) {
    grpc::ClientContext context;
    show(context, kB);
    const grpc::Status status = call(context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("6 requests a minute"));
    EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1U);
  }
  EXPECT_EQ(engine_->requests(), 0U);
  grpc::ClientContext of_a;
  show(of_a, kA);
  EXPECT_TRUE(tokenize(of_a).ok());
}

// Connects anew, and checks a certificate.
// Returns: true if the server shows one that `pair` has signed.
bool shows(int32_t port, const CertificatePair& pair) {
  std::ifstream file(pair.certificate());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("localhost");
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                                 grpc::SslCredentials(options), arguments);
  return channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(1));
}

// Returns: true if it shows the certificate of `pair` within some seconds.
bool comes_to_show(int32_t port, const CertificatePair& pair) {
  for (int i = 0; i < 20; ++i) {
    if (shows(port, pair)) {
      return true;
    }
  }
  return false;
}

TEST_F(Grpc, ShowsACertificateThatWasReplacedToNewConnections) {
  const CertificatePair pair;
  const CertificatePair renewed;
  start({.address = "127.0.0.1",
         .port = 0,
         .tls_certificate = pair.certificate(),
         .tls_key = pair.key()});
  const CertificatePair old;
  pair.copy_to(old);
  EXPECT_TRUE(shows(listener_->port(), old));
  renewed.copy_to(pair);
  EXPECT_TRUE(comes_to_show(listener_->port(), renewed));
  EXPECT_FALSE(shows(listener_->port(), old));
}

// A FIFO would keep the thread that opens it until a process writes.
TEST_F(Grpc, StopsWhereAFifoIsInPlaceOfTheCertificate) {
  const CertificatePair pair;
  const CertificatePair kept;
  const CertificatePair renewed;
  pair.copy_to(kept);
  start({.address = "127.0.0.1",
         .port = 0,
         .tls_certificate = pair.certificate(),
         .tls_key = pair.key()});
  std::filesystem::remove(pair.key());
  ASSERT_EQ(mkfifo(pair.key().c_str(), 0600), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_TRUE(shows(listener_->port(), kept));
  std::filesystem::remove(pair.key());
  renewed.copy_to(pair);
  EXPECT_TRUE(comes_to_show(listener_->port(), renewed));
  std::filesystem::remove(pair.certificate());
  ASSERT_EQ(mkfifo(pair.certificate().c_str(), 0600), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  listener_.reset();
}

TEST_F(Grpc, SpeaksTlsWithTheCertificateItIsGiven) {
  const CertificatePair pair;
  start({.address = "127.0.0.1",
         .port = 0,
         .api_keys = ApiKeys({"one"}),
         .tls_certificate = pair.certificate(),
         .tls_key = pair.key()});
  std::ifstream file(pair.certificate());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = {std::istreambuf_iterator<char>(file), {}};
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("localhost");
  const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(listener_->port()),
                                                 grpc::SslCredentials(options), arguments);
  EXPECT_EQ(health(channel, ""), kServing);
  grpc::ClientContext context;
  show(context, "Bearer one");
  v1::GetModelInfoResponse model;
  EXPECT_TRUE(v1::Inference::NewStub(channel)->GetModelInfo(&context, {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  grpc::ClientContext plain;
  EXPECT_FALSE(stub_->GetModelInfo(&plain, {}, &model).ok()) << "a client that speaks plain HTTP/2";
}

TEST_F(Grpc, NamesTheCertificateItCannotUse) {
  const CertificatePair pair;
  const CertificatePair other;
  GrpcOptions options{.address = "127.0.0.1", .port = 0};
  options.tls_certificate = "/no/such/certificate.pem";
  options.tls_key = pair.key();
  const absl::Status missing = GrpcListener::start(options, *fake_->service, fake_->work).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/no/such/certificate.pem"));
  options.tls_certificate = other.certificate();
  EXPECT_EQ(GrpcListener::start(options, *fake_->service, fake_->work).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera
