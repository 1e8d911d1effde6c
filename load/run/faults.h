#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "load/client/event_loop.h"

namespace tessera::load {

// Shares of requests whose client misbehaves: "close@first=0.05,slow=0.02". A pure function of seed
// and number decides which ones.
class FaultMix {
 public:
  // Errors: InvalidArgument.
  static absl::StatusOr<FaultMix> parse(const std::string& text);
  Fault draw(uint64_t seed, uint64_t number) const;

  // Returns: all faults that may be drawn.
  std::vector<Fault> all() const;

 private:
  struct Part {
    Fault fault;
    double share;
  };
  std::vector<Part> parts_;
};

}  // namespace tessera::load
