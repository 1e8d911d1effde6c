#include "engine/kv/kv_slot.h"

#include "base/check.h"
#include "engine/kv/kv_cache.h"

namespace tessera {

KvSlot::~KvSlot() {
  if (cache_ != nullptr) {
    cache_->release(std::move(*this));
  }
}

int32_t KvSlot::index() const {
  TESSERA_CHECK(cache_ != nullptr, "the slot is released");
  return index_;
}

}  // namespace tessera
