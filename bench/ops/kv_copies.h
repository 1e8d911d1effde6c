#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/device_array.h"
#include "bench/op.h"
#include "kernels/kv_arena.h"

namespace tessera::bench {

// Pages and windows full of usual numbers, for as many layers as it takes to go beyond the caches.
// The rows hold the closed groups of every sequence.
struct KvCopiesShape {
  KvFormat format;
  int32_t head_dim = 0;
  int32_t kv_heads = 0;
  int32_t page_tokens = 64;
  int32_t sequences = 0;
  int32_t context = 0;  // tokens of each sequence
  int32_t shared = 0;   // the first so many of them in the same pages for all; whole pages
  bool token_scores = false;
  int64_t at_least = 0;    // bytes
  int64_t max_layers = 0;  // 0: as many as it takes, two or more
};

class KvCopies {
 public:
  // Gives up when the system has not the memory.
  KvCopies(const KvCopiesShape& shape, const Device& device, std::string_view isa);

  KvPagesView view() const { return arena_->view(); }
  int32_t layers() const { return arena_->shape().layers; }
  int64_t bytes() const { return arena_->shape().arena_bytes(); }

  // The same with counts and tables that the host can read, for op_cost.
  KvPagesView host_view() { return arena_->host_pool().pages; }

  // The rows of each layer hold the closed groups of so many tokens.
  void set_contexts(const std::vector<int32_t>& of_layers);
  // So many dense groups of every KV head, as kv_store leaves them.
  DeviceArray dense(int64_t groups) const;

 private:
  void fill(const Backend& backend);

  const Device& device_;
  std::unique_ptr<KvArena> arena_;
};

}  // namespace tessera::bench
