#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/grpc/call_table.h"
#include "server/grpc/stream_writer.h"
#include "server/service.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Generate stream: the engine's thread leaves tokens here, and whoever owns the stream's
// writing side turns all of them into one message. That is the writer's thread when nothing is
// being written, and gRPC's when a write has just been done; so a client that reads slowly gets
// fewer, larger messages, and costs the engine nothing.
//
// Lives until both gRPC and the engine have let go of it.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public EventSink,
                           public StreamWriter::Stream,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // What all calls share; outlives them.
  struct Shared {
    Service& service;
    CallTable& calls;
    StreamWriter& writer;
    std::size_t max_pending_tokens;
  };

  // The reactor of a new call; a request that is refused finishes at once.
  static GenerateCall* start(const Shared& shared, const v1::GenerateRequest& request);

  explicit GenerateCall(const Shared& shared);

  // Any thread: ends the generation; the stream gets its last message.
  void abort();

 private:
  absl::Status submit(const v1::GenerateRequest& request);
  void cancel(std::unique_lock<std::mutex> lock);
  bool take(std::optional<tessera::Finish>& finish);
  bool read_tokens();
  void finish_with(const tessera::Finish& finish);
  void finish_early(const absl::Status& status);

  void on_token(int32_t token) override;
  void on_finish(const tessera::Finish& finish) override;
  void write_pending() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Shared shared_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  std::string name_;

  // Belong to the owner of the writing side.
  std::optional<Generation> generation_;
  std::vector<int32_t> taken_;
  v1::GenerateResponse response_;
  int32_t completion_tokens_ = 0;

  std::mutex mutex_;  // guards what follows
  std::optional<RequestId> id_;
  std::vector<int32_t> pending_;
  std::optional<tessera::Finish> finish_;
  bool writing_ = true;     // the writing side has an owner
  bool cancelled_ = false;  // the engine is told as soon as there is an id
  bool gone_ = false;       // the client is, or its deadline has passed
  bool too_slow_ = false;   // the client left more than max_pending_tokens unread
};

}  // namespace tessera
