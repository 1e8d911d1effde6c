#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace tessera {

// Masks that were computed before, by keys of any length (mask_key.h). It keeps those used last: a
// full generation becomes the old one, and masks found in the old one move to the new one.
// Thread-safe.
class MaskCache {
 public:
  using Mask = std::shared_ptr<const std::vector<uint32_t>>;

  // max_bytes: of masks, keys and their containers.
  explicit MaskCache(int64_t max_bytes) : generation_bytes_(max_bytes / 2) {}

  // Returns: null if it is not there.
  Mask find(std::span<const int32_t> key);
  void put(std::span<const int32_t> key, std::span<const uint32_t> mask);
  int64_t bytes() const;

 private:
  using Key = std::vector<int32_t>;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const int32_t> key) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  using Generation = std::unordered_map<Key, Mask, Hash, Equal>;

  static int64_t bytes_of(const Key& key, const Mask& mask);
  void add(Key key, Mask mask);

  const int64_t generation_bytes_;
  mutable std::mutex mutex_;  // guards the fields below
  Generation recent_;
  Generation old_;
  int64_t recent_bytes_ = 0;
  int64_t old_bytes_ = 0;
};

}  // namespace tessera
