#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>

#include "server/access_log.h"
#include "server/embeddings/embedding_run.h"
#include "server/grpc/call_table.h"
#include "server/grpc/stream_writer.h"
#include "server/grpc/unread_messages.h"
#include "server/service.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Embed call. The engine thread only posts it to the StreamWriter, whose thread submits further
// inputs and finishes the call.
//
// Destroyed when both gRPC and the writer have released it.
class EmbedCall final : public grpc::ServerUnaryReactor,
                        public StreamWriter::Stream,
                        public std::enable_shared_from_this<EmbedCall> {
 public:
  // Shared by all calls, and outlives them.
  struct Shared {
    Service& service;
    CallTable& calls;
    StreamWriter& writer;
    UnreadMessages& unread;
  };

  // Most bytes of an answer: gRPC's clients take no larger message unless they are told to.
  static constexpr std::size_t kMaxAnswerBytes = 4U << 20U;

  // Returns: a new call. gRPC may have its reactor at once; start() or finish() follows.
  // request_room: of the parsed request. response: gRPC keeps both until the call is done.
  static std::shared_ptr<EmbedCall> make(const Shared& shared, grpc::CallbackServerContext& context,
                                         std::shared_ptr<const Caller> caller,
                                         ByteBudget::Share request_room,
                                         v1::EmbedResponse& response);

  EmbedCall(const Shared& shared, grpc::CallbackServerContext& context,
            v1::EmbedResponse& response);

  // Submits the request. A refused one finishes with its error. Takes time in proportion to it.
  void start(const v1::EmbedRequest& request);

  // Ends the call.
  // Requires: start() is not called.
  void finish(const absl::Status& status);

 private:
  absl::Status begin(const v1::EmbedRequest& request);
  void fill_response(const EmbeddingRun& run);
  void end(const absl::Status& status);

  void write_pending() override;
  void OnCancel() override;
  void OnDone() override;

  const Shared shared_;
  grpc::CallbackServerContext& context_;
  v1::EmbedResponse& response_;
  const std::shared_ptr<RequestRecord> record_ = std::make_shared<RequestRecord>();
  std::shared_ptr<const Caller> caller_;
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
