#pragma once

#include "kernels/backend.h"

namespace tessera {

// A backend whose ops on page tables, and kv_compress and kv_score, are waited for and timed: what
// page management and its scores take. Its decode steps are called op by op, not recorded. One at a
// time, on one thread.
class TimedBackend {
 public:
  explicit TimedBackend(const Backend& timed);

  const Backend& table() const;
  double page_seconds() const;   // kv_resize, kv_fork, kv_share, kv_attach, kv_drop, kv_compress
  double score_seconds() const;  // kv_score
};

}  // namespace tessera
