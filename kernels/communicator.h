#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace tessera {

// The ranks that hold one model's shards together, as seen from one of them. What it does is
// collective: every rank makes the same calls in the same order, and each waits for the others; any
// thread of a rank may make them, one at a time. A rank or a link that fails ends the process, and
// its launcher ends the other ranks: a sum that lacks a part is of no use to anybody.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;  // in [0, ranks()); 0 leads
  virtual int32_t ranks() const = 0;

  // numbers[i] becomes the sum of all ranks' numbers[i], the same bits on each.
  // numbers: as many on every rank, in the memory of the backend that the stream is of
  virtual void all_reduce_sum(std::span<float> numbers, Stream stream) = 0;

  // Whether a backend can record that sum among its ops (kernels/recording.h): called while one
  // does, it puts work on the stream and does nothing else, and each start of the recording is the
  // sum anew. Ranks then record the same in the same order, and start it together, as all that is
  // collective; recordings end before the communicator does. The same on every rank.
  virtual bool records_sums() const = 0;

  // ---- between hosts, in their own memory, as all that follows

  // Everybody gets what rank 0 has: as many bytes on every rank. The others may wait for it for
  // hours, so they soon sleep between two looks, and see it up to two milliseconds late then.
  virtual void broadcast(std::span<std::byte> bytes) = 0;

  // Everybody gets what each rank has: `all` is [ranks, own.size()]. As many on every rank.
  virtual void all_gather(std::span<const int64_t> own, std::span<int64_t> all) = 0;

  // Ends all ranks now, without waiting for any: for one that cannot go on.
  [[noreturn]] virtual void abort() = 0;
};

}  // namespace tessera
