#include "server/base/byte_budget.h"

#include "base/check.h"

namespace tessera {

bool ByteBudget::Share::grow_to(std::size_t bytes) {
  if (bytes <= bytes_) {
    return true;
  }
  TESSERA_CHECK(budget_ != nullptr, "a share without a budget does not grow");
  if (!budget_->add(bytes - bytes_)) {
    return false;
  }
  bytes_ = bytes;
  return true;
}

void ByteBudget::Share::release() {
  if (budget_ != nullptr) {
    std::exchange(budget_, nullptr)->remove(std::exchange(bytes_, 0));
  }
}

std::optional<ByteBudget::Share> ByteBudget::take(std::size_t bytes) {
  return add(bytes) ? std::optional(Share(*this, bytes)) : std::nullopt;
}

std::size_t ByteBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

bool ByteBudget::add(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > bytes_ - used_) {
    return false;
  }
  used_ += bytes;
  return true;
}

void ByteBudget::remove(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(bytes <= used_, "a share returns more bytes than were taken");
  used_ -= bytes;
}

absl::StatusOr<ByteBudget::Share> take_bytes(ByteBudget* budget, std::size_t bytes) {
  if (budget == nullptr) {
    return ByteBudget::Share();
  }
  std::optional<ByteBudget::Share> share = budget->take(bytes);
  if (!share) {
    return absl::UnavailableError(
        "the bodies and answers of other requests fill this server's memory: try again later");
  }
  return *std::move(share);
}

}  // namespace tessera
