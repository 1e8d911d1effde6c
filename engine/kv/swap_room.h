#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "kernels/kv/kv_arena.h"

namespace tessera {

// Returns: bytes of host memory for the swapped-out slots of a cache: a quarter of its own bytes if
// policies may compress single sequences, else 0.
int64_t swap_room_bytes(const KvArenaShape& shape);

// Host memory for swapped-out slots. It is taken at the start and never grows, for any number of
// preempted sequences. The system gives its pages as they are written.
class SwapRoom : public std::enable_shared_from_this<SwapRoom> {
 public:
  // A part of the room; its end gives it back, and keeps the room until then.
  class Part {
   public:
    Part(Part&& other) noexcept
        : room_(std::move(other.room_)), bytes_(std::exchange(other.bytes_, {})) {}
    Part& operator=(Part&& other) noexcept {
      std::swap(room_, other.room_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Part();

    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class SwapRoom;
    Part(std::shared_ptr<SwapRoom> room, std::span<std::byte> bytes)
        : room_(std::move(room)), bytes_(bytes) {}

    std::shared_ptr<SwapRoom> room_;
    std::span<std::byte> bytes_;
  };

  // Returns: a room of so many bytes; null if the system refuses them.
  static std::shared_ptr<SwapRoom> make(int64_t bytes);

  // Returns: the first free part of so many bytes; nothing if there is none.
  std::optional<Part> take(int64_t bytes);

  int64_t used() const;

 private:
  SwapRoom(std::unique_ptr<std::byte[]> memory, int64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}

  const std::unique_ptr<std::byte[]> memory_;
  const int64_t bytes_;
  std::map<int64_t, int64_t> taken_;  // begin and bytes of each part
};

}  // namespace tessera
