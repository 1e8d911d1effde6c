#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/grpc_fixture.h"

namespace tessera {

// Sends one message to a service without generated stubs, as wire bytes.
// Returns: the bytes of the first answer; nullopt if there is none.
inline std::optional<std::string> exchange(const std::shared_ptr<grpc::Channel>& channel,
                                           const std::string& method, const std::string& bytes,
                                           const std::string& authorization = {}) {
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  if (!authorization.empty()) {
    context.AddMetadata("authorization", authorization);
  }
  auto call = grpc::GenericStub(channel).PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  EXPECT_TRUE(done());
  const grpc::Slice slice(bytes);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  done();  // false if the call was refused already
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  const bool answered = done();
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  std::vector<grpc::Slice> slices;
  if (!answered || !answer.Dump(&slices).ok()) {
    return std::nullopt;
  }
  std::string joined;
  for (const grpc::Slice& part : slices) {
    joined.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return joined;
}

// Returns: a grpc.health.v1.HealthCheckResponse as wire bytes.
inline std::optional<std::string> health(const std::shared_ptr<grpc::Channel>& channel,
                                         const std::string& service) {
  std::string request = {0x0a, static_cast<char>(service.size())};
  return exchange(channel, "/grpc.health.v1.Health/Check", request + service);
}

}  // namespace tessera
