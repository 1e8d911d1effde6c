#include "engine/kv/seen_paths.h"

#include <algorithm>

namespace tessera {

SeenPaths::SeenPaths(int64_t paths) : buckets_(static_cast<size_t>(paths) / kBucket + 1) {}

int32_t SeenPaths::record(std::span<const uint64_t> paths) {
  int32_t before = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (record_one(paths[i])) {
      before = static_cast<int32_t>(i) + 1;  // a recorded path implies all its prefixes
    }
  }
  return before;
}

bool SeenPaths::record_one(uint64_t path) {
  Bucket& bucket = buckets_[(path ^ path >> 32) % buckets_.size()];
  const auto found = std::find(bucket.begin(), bucket.end(), path);
  const bool before = found != bucket.end();
  const auto last = before ? found : bucket.end() - 1;
  std::move_backward(bucket.begin(), last, last + 1);
  bucket.front() = path;
  return before;
}

void SeenPaths::forget() {
  std::fill(buckets_.begin(), buckets_.end(), Bucket{});
}

}  // namespace tessera
