// Streams the answer to a chat, and prints the calls of tools in it.
//   chat localhost:50051 "Tell me a story."
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "tessera/v1/inference.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: chat HOST:PORT TEXT\n";
    return 2;
  }
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const auto stub = tessera::v1::Inference::NewStub(channel);

  tessera::v1::GenerateRequest request;
  request.set_max_tokens(60);
  tessera::v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(argv[2]);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  const auto stream = stub->Generate(&context, request);
  tessera::v1::GenerateResponse answer;
  while (stream->Read(&answer)) {
    std::cout << answer.text() << std::flush;
    for (const tessera::v1::ToolCallPart& part : answer.tool_calls()) {
      std::cout << part.name() << part.arguments();
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    std::cerr << status.error_message() << "\n";
    return 1;
  }
  std::cout << "\n[" << answer.usage().completion_tokens() << " tokens]\n";
}
