#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"

namespace tessera {

// Bounded number of bytes that requests may hold at once: bodies that are read, and answers that
// wait for their clients. Thread-safe. Nothing waits for bytes: without them, a request is refused.
class ByteBudget {
 public:
  // Bytes taken from a budget; the destructor returns them. Used by one thread at a time. The
  // budget must outlive it.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { release(); }

    std::size_t bytes() const { return bytes_; }

    // Takes further bytes until the share has `bytes` in all.
    // Returns: false, with the share unchanged, if the budget does not have them.
    bool grow_to(std::size_t bytes);

    void release();

   private:
    friend class ByteBudget;
    Share(ByteBudget& budget, std::size_t bytes) : budget_(&budget), bytes_(bytes) {}

    ByteBudget* budget_ = nullptr;
    std::size_t bytes_ = 0;
  };

  explicit ByteBudget(std::size_t bytes) : bytes_(bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Returns: a share of `bytes`, or nothing if fewer are left.
  std::optional<Share> take(std::size_t bytes);

  std::size_t bytes() const { return bytes_; }
  std::size_t used() const;

 private:
  bool add(std::size_t bytes);
  void remove(std::size_t bytes);

  const std::size_t bytes_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;  // guarded by mutex_
};

// Returns: a share of `bytes`; an empty one if `budget` is null.
// Errors: Unavailable if fewer bytes are left.
absl::StatusOr<ByteBudget::Share> take_bytes(ByteBudget* budget, std::size_t bytes);

}  // namespace tessera
