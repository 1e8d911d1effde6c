#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/candidate.h"

namespace tessera {

// The order in which waiting sequences are admitted. It is scheduling order, except that each
// tenant's places are filled by order_of minus head start: a sequence whose prompt is cached goes
// before others of its own tenant, and takes no place of another's.
class AdmissionOrder {
 public:
  void reserve(size_t candidates);  // up to so many, of() allocates nothing

  // Returns: indices of the waiting candidates. Valid until the next call.
  std::span<const int32_t> of(std::span<const Candidate> candidates);

 private:
  std::vector<int32_t> waiting_;
  std::vector<int32_t> sorted_;                      // within each tenant
  std::vector<std::pair<int32_t, int32_t>> places_;  // a place, and the candidate that takes it
};

}  // namespace tessera
