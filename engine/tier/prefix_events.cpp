#include "engine/tier/prefix_events.h"

#include <utility>

#include "base/check.h"
#include "engine/tier/block_hash.h"

namespace tessera {
namespace {

// Returns: the name of a block behind another, never 0. Different from block_hash of any one
// block, because it depends on the whole path.
uint64_t name_of_path(uint64_t parent, std::span<const int32_t> tokens) {
  constexpr uint64_t kOdd = 0xd6e8feb86659fd93;
  uint64_t name = block_hash(tokens) ^ (parent * kOdd + kOdd);
  name = (name ^ name >> 32) * kOdd;
  name = (name ^ name >> 32) * kOdd;
  name ^= name >> 32;
  return name == 0 ? 1 : name;
}

}  // namespace

void PrefixEvents::reserve(Batch& batch) const {
  // After the last block that fits, each named block may be removed once.
  batch.events.reserve(kMaxStored + names_.size());
  batch.tokens.reserve(kMaxTokens);
}

void PrefixEvents::begin(int32_t blocks, int32_t block_tokens) {
  TESSERA_CHECK(block_tokens_ == 0 && block_tokens > 0, "a journal serves one cache");
  block_tokens_ = block_tokens;
  names_.resize(static_cast<size_t>(blocks));
  reserve(filling_);
}

void PrefixEvents::stored(int32_t node, int32_t parent, std::span<const int32_t> tokens) {
  const uint64_t before = parent < 0 ? 0 : names_[static_cast<size_t>(parent)];
  stored_unnamed(node);
  if (parent >= 0 && before == 0) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (filling_.events.size() >= kMaxStored || filling_.tokens.size() + tokens.size() > kMaxTokens) {
    ++filling_.lost;
    return;
  }
  const uint64_t name = name_of_path(before, tokens);
  names_[static_cast<size_t>(node)] = name;
  filling_.events.push_back({.stored = true, .block = name, .parent = before});
  filling_.tokens.insert(filling_.tokens.end(), tokens.begin(), tokens.end());
  filled_.notify_one();
}

void PrefixEvents::removed(int32_t node) {
  uint64_t& name = names_[static_cast<size_t>(node)];
  if (name == 0) {
    return;
  }
  const std::lock_guard lock(mutex_);
  filling_.events.push_back({.stored = false, .block = name});
  filled_.notify_one();
  name = 0;
}

bool PrefixEvents::stored_in(Store store, uint64_t name) {
  const std::lock_guard lock(mutex_);
  if (filling_.of_stores.size() >= kMaxStored) {
    ++filling_.lost;
    return false;
  }
  filling_.of_stores.push_back({store, true, name});
  filled_.notify_one();
  return true;
}

void PrefixEvents::removed_from(Store store, uint64_t name) {
  const std::lock_guard lock(mutex_);
  filling_.of_stores.push_back({store, false, name});
  filled_.notify_one();
}

bool PrefixEvents::take(Batch& batch) {
  batch.events.clear();
  batch.of_stores.clear();
  batch.tokens.clear();
  batch.lost = 0;
  reserve(batch);
  std::unique_lock lock(mutex_);
  const auto any = [](const Batch& of) { return !of.events.empty() || !of.of_stores.empty(); };
  filled_.wait(lock, [&] { return any(filling_) || closed_; });
  std::swap(batch, filling_);
  return any(batch);
}

void PrefixEvents::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  filled_.notify_one();
}

}  // namespace tessera
