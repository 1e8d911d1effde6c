#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/device_array.h"
#include "bench/op.h"
#include "kernels/kv/kv_arena.h"

namespace tessera::bench {

// Shape of KvCopies: pages and residual buffers of typical values, for as many layers as exceed the
// caches. The rows hold the closed groups of every sequence.
struct KvCopiesShape {
  KvFormat format;
  int32_t head_dim = 0;
  int32_t kv_heads = 0;
  int32_t page_tokens = 64;
  int32_t sequences = 0;
  int32_t context = 0;  // tokens of each sequence
  // leading tokens whose pages all sequences share; whole pages
  int32_t shared = 0;
  bool token_scores = false;
  bool sketched = false;  // random sketches, so that chosen tiles are scattered; host memory only
  int64_t at_least = 0;   // minimum bytes of all pages
  int64_t min_layers = 2;
  int64_t max_layers = 0;  // unless min_layers is larger; 0: no limit
};

// Owner of an arena of the given shape, on a device that outlives it.
class KvCopies {
 public:
  // Errors: exits with a message if the device has not enough memory.
  KvCopies(const KvCopiesShape& shape, const Device& device, std::string_view isa);

  KvPagesView view() const { return arena_->view(); }
  int32_t layers() const { return arena_->shape().layers; }
  int64_t bytes() const { return arena_->shape().arena_bytes(); }

  // Returns: view() with counts and tables in host memory, for op_cost.
  KvPagesView host_view() { return arena_->host_pool().pages; }

  // Sets the rows of each layer to the closed groups of that layer's entry in `of_layers`, in
  // tokens.
  void set_contexts(const std::vector<int32_t>& of_layers);
  // Returns: `groups` dense groups of every KV head, in the layout of kv_store's output.
  DeviceArray dense(int64_t groups) const;

 private:
  void fill(const Backend& backend);
  void fill_sketches();

  const Device& device_;
  std::unique_ptr<KvArena> arena_;
};

}  // namespace tessera::bench
