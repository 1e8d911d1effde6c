#include "load/run/faults.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "load/request/variates.h"

namespace tessera::load {
namespace {

const std::map<std::string, Fault::Kind> kKinds = {{"close", Fault::Kind::close},
                                                   {"freeze", Fault::Kind::freeze},
                                                   {"slow", Fault::Kind::slow},
                                                   {"garbage", Fault::Kind::garbage}};
const std::map<std::string, Fault::Phase> kPhases = {{"head", Fault::Phase::head},
                                                     {"body", Fault::Phase::body},
                                                     {"sent", Fault::Phase::sent},
                                                     {"first", Fault::Phase::first},
                                                     {"middle", Fault::Phase::middle}};

}  // namespace

absl::StatusOr<FaultMix> FaultMix::parse(const std::string& text) {
  FaultMix mix;
  double total = 0;
  const std::vector<std::string> parts = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, '=');
    const std::vector<std::string> what = absl::StrSplit(sides[0], '@');
    const auto kind = kKinds.find(what[0]);
    const bool phased = kind != kKinds.end() &&
                        (kind->second == Fault::Kind::close || kind->second == Fault::Kind::freeze);
    const auto phase = kPhases.find(phased && what.size() == 2 ? what[1] : "sent");
    double share = 0;
    if (kind == kKinds.end() || phase == kPhases.end() || sides.size() != 2 ||
        what.size() != (phased ? 2u : 1u) || !absl::SimpleAtod(sides[1], &share) ||
        !(share > 0 && share <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--faults: '", part,
                       "' is not {close,freeze}@{head,body,sent,first,middle}=SHARE, slow=SHARE or "
                       "garbage=SHARE"));
    }
    mix.parts_.push_back({{kind->second, phase->second}, share});
    total += share;
  }
  if (total > 1) {
    return absl::InvalidArgumentError("--faults: the shares are more than 1 together");
  }
  return mix;
}

std::vector<Fault> FaultMix::all() const {
  std::vector<Fault> faults;
  for (const Part& part : parts_) {
    faults.push_back(part.fault);
  }
  return faults;
}

Fault FaultMix::draw(uint64_t seed, uint64_t number) const {
  if (parts_.empty()) {
    return {};
  }
  double place = Variates(seed_of(seed ^ 0xfa017, number)).uniform();
  for (const Part& part : parts_) {
    if (place < part.share) {
      return part.fault;
    }
    place -= part.share;
  }
  return {};
}

}  // namespace tessera::load
