#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tier/prefix_events.h"

namespace tessera {

struct KvEventOptions {
  std::string endpoint;  // ZeroMQ's, such as "tcp://*:5557"; empty: nothing is published
  std::string topic;     // first part of each message; routers find the replica's name in it
};

// Publishes a journal over a ZeroMQ PUB socket, on a thread of its own. Each message has three
// parts, as vLLM's: the topic, a number (8 bytes, big endian) that counts from 0, and the events
// (kv_event_message.h). A subscriber that reads too slowly misses messages, and sees it by the
// numbers; it never delays the engine. At most kMaxUnsent messages wait for each subscriber.
class KvEventPublisher {
 public:
  static constexpr int kMaxUnsent = 64;

  // Listens where the endpoint has a "*" or is "ipc://...", else connects to it, as vLLM does.
  // Requires: PrefixEvents::begin() was called. events: outlives this; only this one takes of it.
  // Errors: Unavailable, with the reason, if the endpoint is taken, or not one of ZeroMQ's.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> start(const KvEventOptions& options,
                                                                 PrefixEvents& events);
  // Ends the journal, and gives subscribers a second for the last messages.
  virtual ~KvEventPublisher() = default;
};

}  // namespace tessera
