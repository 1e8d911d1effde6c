#include "server/generation/stream_room.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "server/generation/answer_bytes.h"

namespace tessera {

bool StreamRoom::add(std::size_t bytes) {
  const std::size_t wanted = used_ + bytes;
  if (budget_ != nullptr && wanted > kUnreadBytes + share_.bytes()) {
    const std::size_t grown = share_.bytes() + std::max(bytes, kUnreadBytes);
    if (share_.bytes() > 0) {
      if (!share_.grow_to(grown)) {
        return false;
      }
    } else if (std::optional<ByteBudget::Share> taken = budget_->take(grown)) {
      share_ = *std::move(taken);
    } else {
      return false;
    }
  }
  used_ = wanted;
  return true;
}

void StreamRoom::remove(std::size_t bytes) {
  TESSERA_CHECK(bytes <= used_, "more bytes were read than waited");
  used_ -= bytes;
  if (used_ == 0) {
    share_.release();
  }
}

}  // namespace tessera
