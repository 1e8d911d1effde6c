#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "tests/server/certificate.h"
#include "tests/server/grpc_exchange.h"
#include "tests/server/grpc_fixture.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
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

TEST_F(GrpcKeys, WithoutOneEveryCallIsUnauthenticated) {
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
  EXPECT_EQ(exchange(channel_, kReflection, kListServices), std::nullopt);
  const auto services = exchange(channel_, kReflection, kListServices, "Bearer two");
  ASSERT_TRUE(services);
  EXPECT_THAT(*services, HasSubstr("tessera.v1.Inference"));
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
