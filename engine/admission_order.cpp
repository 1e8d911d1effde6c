#include "engine/admission_order.h"

#include <algorithm>
#include <tuple>

namespace tessera {

void AdmissionOrder::reserve(size_t candidates) {
  waiting_.reserve(candidates);
  sorted_.reserve(candidates);
  places_.reserve(candidates);
}

std::span<const int32_t> AdmissionOrder::of(std::span<const Candidate> candidates) {
  const auto at = [&](int32_t i) -> const Candidate& { return candidates[static_cast<size_t>(i)]; };
  const auto tenant = [&](int32_t i) { return at(i).turn.tenant; };
  const auto key = [&](int32_t i) {
    return std::tuple(tenant(i), at(i).turn.order - at(i).prefix.head_start, i);
  };
  waiting_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].running) {
      waiting_.push_back(static_cast<int32_t>(i));
    }
  }
  sorted_ = waiting_;
  std::sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  // The places in scheduling order, grouped by tenant.
  std::sort(waiting_.begin(), waiting_.end(), [&](int32_t a, int32_t b) {
    return std::pair(tenant(a), a) < std::pair(tenant(b), b);
  });
  places_.clear();
  for (size_t i = 0; i < sorted_.size(); ++i) {
    places_.emplace_back(waiting_[i], sorted_[i]);
  }
  std::sort(places_.begin(), places_.end());
  std::transform(places_.begin(), places_.end(), waiting_.begin(),
                 [](const auto& place) { return place.second; });
  return waiting_;
}

}  // namespace tessera
