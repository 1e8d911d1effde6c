#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "engine/channel.h"
#include "engine/expected_wait.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace tessera {

// One message from a client thread to the engine thread. It has one of three meanings: a new
// request (`samples` is not empty), a cancellation (`cancelled` is not 0), or a flush of the prefix
// cache (neither).
struct Message {
  std::vector<std::unique_ptr<Sequence>> samples = {};
  RequestId cancelled = 0;  // id of a sample; 0 is the id of no sequence
  // Only with several ranks: the request and the id of its first sample. The other ranks construct
  // their samples from these.
  RequestId first_id = 0;
  std::unique_ptr<EngineRequest> request = {};
};

// Bounded queue from client threads to the engine thread. It holds all state that these threads
// share: the limit of waiting sequences, the ids of unfinished sequences, and the channel. It
// counts sequences, not requests. Pushing never blocks. Thread-safe.
class RequestQueue {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // max_queue: maximum number of unfinished sequences that do not run; more are refused.
  // max_sequences: maximum number of sequences that run at once.
  RequestQueue(int32_t max_queue, int32_t max_sequences);

  // ---- any thread

  // Sends all samples of a request to the engine in one message.
  // Errors, with nothing sent: Unavailable if refuse() was called. ResourceExhausted with the
  // expected wait (retry_after.h) if
  //   - the queue has no room for all samples,
  //   - its tenant would have more samples waiting than places are free. So a tenant that floods
  //     the queue leaves half of it to the others (dynamic thresholds: Choudhury and Hahne, 1998),
  //   - or it is expected to wait beyond its queue timeout or deadline.
  absl::Status push(Message request, Time now);

  // Sends a cancellation. Does nothing if the sequence has ended, is unknown or was cancelled.
  void cancel(RequestId id);

  void flush();   // sends a flush of the prefix cache, unless one is in the channel already
  void refuse();  // from now on push() fails
  void close();   // refuse(), and wait() no longer sleeps
  bool closed() const;
  bool empty() const;  // no sequence is unfinished

  // ---- engine thread

  // Appends all messages to `messages`, oldest first. Never blocks.
  void receive(std::vector<Message>& messages);
  // Sleeps until a message arrives or the queue is closed.
  // Returns: false if the queue is closed and no message is left.
  bool wait() { return channel_.wait(); }

  // Counts the running sequences, which do not count towards max_queue.
  void set_running(Sequences unfinished);
  // A sequence was admitted for the first time.
  void note_admission(const Sequence& sequence, Time now);
  void remove(const Sequence& sequence);  // it has ended

 private:
  struct Tenant {
    int64_t unfinished = 0;
    int64_t running = 0;
    ExpectedWait wait;
    bool gave_up = false;  // a sequence left before it was admitted, and no place was free since

    int64_t waiting() const { return unfinished - running; }
  };

  int64_t waiting() const { return unfinished_ - running_; }
  // Requires: mutex_ is held.
  absl::Status check_room(const Sequence& first, int64_t samples, const Tenant& tenant,
                          Time now) const;

  const int64_t max_queue_;
  const int64_t max_sequences_;
  Channel<Message> channel_;
  mutable std::mutex mutex_;  // held while pushing, so that no request is pushed after refuse()
  bool refusing_ = false;
  bool closed_ = false;
  bool flushing_ = false;  // a flush is in the channel
  int64_t unfinished_ = 0;
  int64_t running_ = 0;
  std::unordered_map<int32_t, Tenant> tenants_;  // by id; as many as the key file names
  std::unordered_set<RequestId> cancellable_;    // unfinished and not cancelled
};

}  // namespace tessera
