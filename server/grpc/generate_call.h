#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/base/request_work.h"
#include "server/generation/service.h"
#include "server/generation/stream_room.h"
#include "server/grpc/answer_fields.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_table.h"
#include "server/grpc/stream_writer.h"
#include "server/grpc/wire.h"
#include "server/telemetry/access_log.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Generate stream. The engine thread appends tokens. The owner of the stream's writing side
// turns all pending tokens of one sequence into one message. This owner is the StreamWriter thread
// if no write is in progress, and gRPC's thread after a write has completed. A client that reads
// slowly gets fewer, larger messages, and does not slow down the engine. With best_of above n the
// messages are held until all sequences have ended.
//
// Destroyed when both gRPC and the engine have released it.
class GenerateCall final
    : public grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>,
      public StreamWriter::Stream,
      public std::enable_shared_from_this<GenerateCall> {
 public:
  // Shared by all calls, and outlives them.
  struct Shared {
    Service& service;
    CallTable& calls;
    StreamWriter& writer;
    UnreadMessages& unread;
    RequestWork work;
    std::size_t max_pending_tokens;
  };

  // Returns: the reactor of a new call, which waits for its request.
  static GenerateCall* begin(const Shared& shared, const CallLimits& limits,
                             grpc::ServerContextBase& context, std::shared_ptr<const Caller> caller,
                             OpenCalls::Place place);

  // Returns: the reactor of a call that finishes at once, with `status`.
  // caller: an empty one if the key is refused
  static GenerateCall* refuse(const Shared& shared, grpc::ServerContextBase& context,
                              std::shared_ptr<const Caller> caller, const absl::Status& status,
                              OpenCalls::Place place);

  GenerateCall(const Shared& shared, grpc::ServerContextBase& context);
  ~GenerateCall() override;

  // Any thread. Ends the generation; the stream still gets its last message.
  void abort();

 private:
  struct Sequence;
  struct Taken;

  static std::shared_ptr<GenerateCall> make(const Shared& shared, grpc::ServerContextBase& context,
                                            std::shared_ptr<const Caller> caller,
                                            OpenCalls::Place place);
  void start();
  absl::Status read_request();
  void finish_early(const absl::Status& status);
  void prepare_first(GenerateCallRequest parsed);
  absl::Status submit(GenerateCallRequest parsed);
  void accept(const GenerateCallRequest& parsed, Accepted accepted, std::string echo);
  void cancel(std::unique_lock<std::mutex> lock);

  void add_prompt(Sequence& sequence, SeenToken token);
  void add(Sequence& sequence, SeenToken token);
  void add_end(Sequence& sequence, const tessera::Finish& finish);
  void wake(std::unique_lock<std::mutex> lock);

  Taken take();
  void take_from(Sequence& sequence);
  bool read_tokens(Sequence& sequence);
  bool write(Sequence& sequence, bool any);
  absl::Status end(Sequence& sequence);
  void choose_best();
  void send(bool last);

  void write_pending() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Shared shared_;
  grpc::ServerContextBase& context_;  // of the call; valid until OnDone
  const std::shared_ptr<RequestRecord> record_ = std::make_shared<RequestRecord>();
  std::shared_ptr<const Caller> caller_;
  OpenCalls::Place place_;
  v1::GenerateRequest request_;
  ByteBudget::Share request_room_;
  std::optional<AnswerNotation> notation_;  // of a chat
  AnswerEnd end_;
  std::size_t best_ = 0;  // sequences of which the messages are sent, if not all
  absl::StatusCode end_code_ = absl::StatusCode::kOk;  // only the writing side's owner
  std::shared_ptr<GenerateCall> self_;                 // keeps the call alive until OnDone
  std::string name_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // sinks of the engine

  // Only the owner of the writing side uses these.
  v1::GenerateResponse response_;
  v1::Usage usage_;
  KvReport kv_;  // of the finished sequences
  ByteBudget::Share room_;
  std::size_t next_ = 0;                     // sequence that is polled next
  std::size_t ended_ = 0;                    // sequences whose last message was made
  std::deque<v1::GenerateResponse> chosen_;  // messages of the best sequences

  std::mutex mutex_;  // guards the fields below, and the pending events of the sequences
  std::vector<RequestId> ids_;
  std::size_t pending_tokens_ = 0;
  StreamRoom pending_room_;  // of these tokens
  bool writing_ = true;      // the writing side has an owner
  bool cancelled_ = false;   // passed on to the engine as soon as there are ids
  bool gone_ = false;        // the client has disconnected, or its deadline has passed
  bool too_slow_ = false;    // the client left more tokens unread than may wait
};

}  // namespace tessera
