#include "engine/tier/block_buffers.h"

namespace tessera {

BlockBuffers::BlockBuffers(int64_t bytes, int64_t block_bytes, int32_t block_tokens)
    : buffers_(static_cast<size_t>(count(bytes, block_bytes))) {
  const auto room = static_cast<size_t>(block_bytes);
  // Not initialised, so that no page is written before it is used.
  memory_.reset(new std::byte[buffers_.size() * room]);
  free_.reserve(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].tokens.reserve(static_cast<size_t>(block_tokens));
    buffers_[i].room = {memory_.get() + i * room, room};
    free_.push_back(&buffers_[i]);
  }
}

BlockBuffer* BlockBuffers::take() {
  if (free_.empty()) {
    return nullptr;
  }
  BlockBuffer* const buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace tessera
