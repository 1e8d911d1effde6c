#include "server/grammar/mask_cache.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera {

std::size_t MaskCache::Hash::operator()(std::span<const int32_t> key) const {
  return std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(key.data()), key.size_bytes()});
}

bool MaskCache::Equal::operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

int64_t MaskCache::bytes_of(const Key& key, const Mask& mask) {
  constexpr int64_t kHolders = 160;  // nodes, buckets and the counts of pointers
  return static_cast<int64_t>(key.size() * sizeof(int32_t) + mask->size() * sizeof(uint32_t)) +
         kHolders;
}

MaskCache::Mask MaskCache::find(std::span<const int32_t> key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = recent_.find(key); found != recent_.end()) {
    return found->second;
  }
  const auto found = old_.find(key);
  if (found == old_.end()) {
    return nullptr;
  }
  const Mask mask = found->second;
  auto node = old_.extract(found);
  old_bytes_ -= bytes_of(node.key(), mask);
  add(std::move(node.key()), mask);
  return mask;
}

void MaskCache::put(std::span<const int32_t> key, std::span<const uint32_t> mask) {
  Key kept(key.begin(), key.end());
  Mask copy = std::make_shared<const std::vector<uint32_t>>(mask.begin(), mask.end());
  const std::lock_guard lock(mutex_);
  add(std::move(kept), std::move(copy));
}

int64_t MaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return recent_bytes_ + old_bytes_;
}

void MaskCache::add(Key key, Mask mask) {
  const int64_t bytes = bytes_of(key, mask);
  if (bytes > generation_bytes_) {
    return;
  }
  if (recent_bytes_ + bytes > generation_bytes_) {
    old_ = std::exchange(recent_, {});
    old_bytes_ = std::exchange(recent_bytes_, 0);
  }
  if (recent_.emplace(std::move(key), std::move(mask)).second) {
    recent_bytes_ += bytes;
  }
}

}  // namespace tessera
