#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace tessera {

// One rank's connection to all ranks that hold one model's shards. The operations are collective:
// every rank makes the same calls in the same order, and each waits for the others. Any thread of a
// rank may make them, one call at a time.
// Errors: a failure of a rank or a link ends the process, and its launcher ends the other ranks,
// because an incomplete sum is useless.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;  // in [0, ranks()); 0 is the leader
  virtual int32_t ranks() const = 0;

  // Replaces numbers[i] by the sum of all ranks' numbers[i], with the same bits on each rank.
  // Requires: equal sizes on all ranks; `numbers` in the memory of the stream's backend.
  virtual void all_reduce_sum(std::span<float> numbers, Stream stream) = 0;

  // Returns: true if a backend can record that sum among its ops (kernels/recording.h); the same on
  // every rank. During recording, the sum only puts work on the stream, and each start of the
  // recording computes it again.
  // Requires: ranks record the same calls in the same order and start the recording together, like
  // every collective call; recordings are destroyed before the communicator.
  virtual bool records_sums() const = 0;

  // ---- between hosts, in host memory: all functions below

  // Copies the bytes of rank 0 to every rank. The other ranks may wait for hours, so they soon
  // sleep between two polls. They then see the broadcast up to two milliseconds late.
  // Requires: equal sizes on all ranks.
  virtual void broadcast(std::span<std::byte> bytes) = 0;

  // Copies each rank's numbers to every rank: `all` is [ranks, own.size()].
  // Requires: equal sizes on all ranks.
  virtual void all_gather(std::span<const int64_t> own, std::span<int64_t> all) = 0;

  // Ends all ranks immediately, without waiting for any: for a rank that cannot continue.
  [[noreturn]] virtual void abort() = 0;
};

}  // namespace tessera
