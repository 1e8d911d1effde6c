#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "engine/channel.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace tessera {

// What comes in through the door: a new request's samples or, without any, the wish to cancel the
// sample `cancelled`.
struct Message {
  std::vector<std::unique_ptr<Sequence>> samples = {};
  RequestId cancelled = 0;  // no sequence has this id; nor samples: the prefix cache is flushed
  // Where other ranks are to have the samples too: what they are made of.
  RequestId first_id = 0;
  std::unique_ptr<EngineRequest> request = {};
};

// Where requests come in. All that clients' threads and the engine's thread share: the limit of
// the queue, who is inside, and the channel. It counts sequences.
class RequestQueue {
 public:
  // max_queue: sequences inside that do not run; more are refused. max_sequences: that run at once.
  RequestQueue(int32_t max_queue, int32_t max_sequences);

  // Sends a request's samples to the engine, all together. Errors, with nothing sent: Unavailable
  // (refuse() was called), ResourceExhausted (the queue has no room for all, with its length).
  absl::Status enter(Message request);

  // Sends the wish to cancel, once for a sequence that is inside; otherwise does nothing.
  void cancel(RequestId id);

  void flush();   // sends the wish to flush the prefix cache
  void refuse();  // nobody comes in any more
  void close();   // refuse(), and receive() waits no longer
  bool closed() const;
  bool empty() const;  // nobody is inside

  // The engine's thread, as all that follow: appends what came in. wait: sleeps until something
  // does or the door is closed; false: it is closed and nothing is left to receive.
  void receive(std::vector<Message>& messages);
  bool wait() { return channel_.wait(); }

  void set_running(int32_t sequences);
  void leave(RequestId id);  // it has ended

 private:
  const int64_t max_queue_;
  Channel<Message> channel_;
  mutable std::mutex mutex_;  // held while pushing, so that nothing enters after refuse()
  bool refusing_ = false;
  bool closed_ = false;
  bool flushing_ = false;  // the wish is in the channel
  int64_t unfinished_ = 0;
  int64_t running_ = 0;
  std::unordered_set<RequestId> cancellable_;  // inside, and not cancelled yet
};

}  // namespace tessera
