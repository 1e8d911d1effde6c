#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace tessera {

// Messages that gRPC is writing, and requests that it waits for. A client that does not read one
// would keep the room of its answer for as long as its connection lives, and one that sends none
// the place of its call. So its call is cancelled: a client may take `timeout` for a message, and a
// second more for each 256 KiB of it. Thread-safe.
class UnreadMessages {
 public:
  explicit UnreadMessages(std::chrono::milliseconds timeout);
  ~UnreadMessages();
  UnreadMessages(const UnreadMessages&) = delete;
  UnreadMessages& operator=(const UnreadMessages&) = delete;

  // gRPC begins to write a message of the call, in place of an earlier one, or to wait for one of
  // at most so many bytes.
  // Requires: end() is called while `context` is valid.
  void begin(grpc::ServerContextBase& context, std::size_t bytes);

  // The message is written, or the call has ended. No effect if none has begun.
  void end(grpc::ServerContextBase& context);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void cancel_overdue();

  const std::chrono::milliseconds timeout_;
  // Recursive, because gRPC may run the reaction to a cancellation on the thread that cancels, and
  // that begins or ends a message.
  std::recursive_mutex mutex_;
  std::condition_variable_any stopped_;
  std::unordered_map<grpc::ServerContextBase*, Clock::time_point> due_;  // guarded by mutex_
  bool stopping_ = false;                                                // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera
