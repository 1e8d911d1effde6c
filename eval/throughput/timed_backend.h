#pragma once

#include "kernels/backend.h"

namespace tessera {

// A copy of a backend that waits for and times its ops on page tables, kv_compress and kv_score. It
// measures the time of page management and of its scores. Decode steps are called op by op, not
// recorded. Only one instance at a time, on one thread.
class TimedBackend {
 public:
  explicit TimedBackend(const Backend& timed);

  const Backend& table() const;
  // kv_resize, kv_fork, kv_share, kv_attach, kv_own, kv_evict, kv_compress
  double page_seconds() const;
  double score_seconds() const;  // kv_score
};

}  // namespace tessera
