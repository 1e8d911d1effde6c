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
#include "server/grpc/wire.h"
#include "server/service.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Generate stream: the engine's thread leaves tokens here, and whoever owns the stream's
// writing side turns all of one sequence's into one message. That is the writer's thread when
// nothing is being written, and gRPC's when a write has just been done; so a client that reads
// slowly gets fewer, larger messages, and costs the engine nothing.
//
// Lives until both gRPC and the engine have let go of it.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
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
  static GenerateCall* start(const Shared& shared, const grpc::ServerContextBase& context,
                             const v1::GenerateRequest& request);

  // The reactor of a call that only ends.
  static GenerateCall* refuse(const Shared& shared, const absl::Status& status);

  explicit GenerateCall(const Shared& shared);
  ~GenerateCall() override;

  // Any thread: ends the generation; the stream gets its last message.
  void abort();

 private:
  struct Sequence;
  struct Taken;

  static std::shared_ptr<GenerateCall> make(const Shared& shared);
  absl::Status submit(const grpc::ServerContextBase& context, const v1::GenerateRequest& request);
  void cancel(std::unique_lock<std::mutex> lock);

  void add_prompt(Sequence& sequence, SeenToken token);
  void add(Sequence& sequence, SeenToken token);
  void end(Sequence& sequence, const tessera::Finish& finish);
  void wake(std::unique_lock<std::mutex> lock);

  Taken take();
  void take_from(Sequence& sequence);
  bool read_tokens(Sequence& sequence);
  bool write(Sequence& sequence, bool any);
  void finish_early(const absl::Status& status);

  void write_pending() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Shared shared_;
  std::shared_ptr<GenerateCall> self_;  // until OnDone
  std::string name_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // the engine's sinks

  // Belong to the owner of the writing side.
  v1::GenerateResponse response_;
  v1::Usage usage_;
  KvReport kv_;            // of the sequences that have ended
  std::size_t next_ = 0;   // where to look for something to write
  std::size_t ended_ = 0;  // sequences that have had their last message

  std::mutex mutex_;  // guards what follows, and what sequences wait to write
  std::vector<RequestId> ids_;
  std::size_t pending_tokens_ = 0;
  bool writing_ = true;     // the writing side has an owner
  bool cancelled_ = false;  // the engine is told as soon as there are ids
  bool gone_ = false;       // the client is, or its deadline has passed
  bool too_slow_ = false;   // the client left more than max_pending_tokens unread
};

}  // namespace tessera
