#include "engine/kv/swap_room.h"

#include <algorithm>
#include <new>

namespace tessera {
namespace {

constexpr int64_t kSwapShare = 4;  // of the cache's bytes: one of so many
constexpr int64_t kAlignment = 64;

}  // namespace

int64_t swap_room_bytes(const KvArenaShape& shape) {
  return shape.token_scores ? shape.total_bytes() / kSwapShare : 0;
}

SwapRoom::Part::~Part() {
  if (room_ != nullptr && !bytes_.empty()) {
    room_->taken_.erase(bytes_.data() - room_->memory_.get());
  }
}

std::shared_ptr<SwapRoom> SwapRoom::make(int64_t bytes) {
  // Not initialised, so that no page is written before it is used.
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (memory == nullptr) {
    return nullptr;
  }
  return std::shared_ptr<SwapRoom>(new SwapRoom(std::move(memory), bytes));
}

std::optional<SwapRoom::Part> SwapRoom::take(int64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  int64_t begin = 0;
  for (const auto& [other, count] : taken_) {
    if (other - begin >= bytes) {
      break;
    }
    begin = other + count;
  }
  if (bytes_ - begin < bytes) {
    return std::nullopt;
  }
  taken_.emplace(begin, bytes);
  return Part(shared_from_this(), {memory_.get() + begin, static_cast<size_t>(bytes)});
}

int64_t SwapRoom::used() const {
  int64_t sum = 0;
  for (const auto& [begin, count] : taken_) {
    sum += count;
  }
  return sum;
}

}  // namespace tessera
