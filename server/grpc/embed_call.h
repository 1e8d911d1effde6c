#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "server/base/request_work.h"
#include "server/generation/embedding_run.h"
#include "server/generation/service.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_table.h"
#include "server/grpc/stream_writer.h"
#include "server/telemetry/access_log.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Embed call. The engine thread only posts it to the StreamWriter, whose thread submits further
// inputs and finishes the call.
//
// Destroyed when both gRPC and the writer have released it.
class EmbedCall final : public grpc::ServerBidiReactor<v1::EmbedRequest, v1::EmbedResponse>,
                        public StreamWriter::Stream,
                        public std::enable_shared_from_this<EmbedCall> {
 public:
  // Shared by all calls, and outlives them.
  struct Shared {
    Service& service;
    CallTable& calls;
    StreamWriter& writer;
    UnreadMessages& unread;
    RequestWork work;
  };

  // Most bytes of an answer: gRPC's clients take no larger message unless they are told to.
  static constexpr std::size_t kMaxAnswerBytes = 4U << 20U;

  // Returns: the reactor of a new call, which waits for its request.
  static EmbedCall* begin(const Shared& shared, const CallLimits& limits,
                          grpc::CallbackServerContext& context,
                          std::shared_ptr<const Caller> caller, OpenCalls::Place place);

  EmbedCall(const Shared& shared, grpc::CallbackServerContext& context);

 private:
  void start();
  absl::Status read_request();
  void finish(const absl::Status& status);
  void fill_response(const EmbeddingRun& run);
  void end(const absl::Status& status);

  void write_pending() override;
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Shared shared_;
  grpc::CallbackServerContext& context_;
  v1::EmbedRequest request_;
  v1::EmbedResponse response_;
  const std::shared_ptr<RequestRecord> record_ = std::make_shared<RequestRecord>();
  std::shared_ptr<const Caller> caller_;
  OpenCalls::Place place_;
  ByteBudget::Share request_room_;
  std::string model_;                // as the request names it
  std::shared_ptr<EmbedCall> self_;  // keeps the call alive until OnDone
  absl::StatusCode end_code_ = absl::StatusCode::kOk;

  std::mutex mutex_;  // guards the fields below
  std::unique_ptr<EmbeddingRun> run_;
  bool cancelled_ = false;
  bool finished_ = false;
};

}  // namespace tessera
