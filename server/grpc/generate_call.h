#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/base/request_work.h"
#include "server/generation/answer.h"
#include "server/generation/service.h"
#include "server/grpc/call_limits.h"
#include "server/grpc/call_table.h"
#include "server/grpc/stream_writer.h"
#include "server/telemetry/access_log.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// One Generate stream. Its answer's events wake the owner of the writing side, who turns all new
// tokens of one sequence into a message. The owner is the StreamWriter thread if no write is in
// progress, and gRPC's thread after a write has completed. A client that reads slowly gets fewer,
// larger messages, and does not slow down the engine. With best_of above n the messages are made
// when all sequences have ended.
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
  class WakeUp;

  static std::shared_ptr<GenerateCall> make(const Shared& shared, grpc::ServerContextBase& context,
                                            std::shared_ptr<const Caller> caller,
                                            OpenCalls::Place place);
  void start();
  absl::Status begin_answer();
  void resume();
  void note_ids();
  void finish_early(const absl::Status& status);
  void cancel(std::unique_lock<std::mutex> lock);

  void wake();
  bool begin_round();
  bool release();
  absl::Status read_events();
  void print(Choice& choice);
  void print_best();
  void send();

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
  absl::StatusCode end_code_ = absl::StatusCode::kOk;  // only the writing side's owner
  std::shared_ptr<GenerateCall> self_;                 // keeps the call alive until OnDone
  std::string name_;

  // Only the owner of the writing side uses these.
  std::unique_ptr<Answer> answer_;             // null before it begins, and after OnDone
  std::deque<v1::GenerateResponse> messages_;  // not sent
  v1::GenerateResponse response_;              // being written
  std::size_t next_ = 0;                       // sequence that is read next
  std::vector<bool> printed_;                  // by sequence: its last message was made
  bool complete_ = false;                      // the stream's last message was made

  std::mutex mutex_;  // guards the fields below
  std::vector<RequestId> ids_;
  bool writing_ = true;     // the writing side has an owner
  bool woken_ = false;      // there may be events that the owner has not seen
  bool cancelled_ = false;  // passed on to the engine as soon as there are ids
  bool gone_ = false;       // the client has disconnected, or its deadline has passed
};

}  // namespace tessera
