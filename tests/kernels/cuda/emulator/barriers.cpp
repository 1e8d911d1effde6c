#include "tests/kernels/cuda/emulator/barriers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"

namespace tessera::simt::emulation {
namespace {

std::string name_of(const std::source_location& place) {
  const std::string_view path = place.file_name();
  return std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(place.line());
}

constexpr std::string_view kNames[] = {"cluster", "block", "warp", "missing"};  // of BarrierKind

// The fault of TESSERA_EMULATED_FAULT.
struct Fault {
  std::string place;  // empty: none
  BarrierKind left = BarrierKind::none;
};
Fault fault_of_process() {
  const char* variable = std::getenv("TESSERA_EMULATED_FAULT");
  if (variable == nullptr) {
    return {};
  }
  const std::string fault = variable;
  const auto* kind = std::find(std::begin(kNames) + 1, std::end(kNames),
                               std::string_view(fault).substr(0, fault.find(':')));
  TESSERA_CHECK(kind != std::end(kNames), "an unknown fault of a barrier");
  std::fprintf(stderr, "emulated fault: %s\n", variable);
  return {fault.substr(fault.find(':') + 1), static_cast<BarrierKind>(kind - std::begin(kNames))};
}

// Prints the places that were added when the process ends.
class Places {
 public:
  ~Places() {
    for (const std::string& place : places_) {
      std::fprintf(stderr, "barrier %s\n", place.c_str());
    }
  }
  void add(std::string place) { places_.insert(std::move(place)); }

 private:
  std::set<std::string> places_;
};

}  // namespace

BarrierKind barrier_at(const std::source_location& place, BarrierKind intended) {
  static const Fault fault = fault_of_process();
  static const bool listed = std::getenv("TESSERA_EMULATED_BARRIERS") != nullptr;
  if (listed) {
    static Places places;
    places.add(std::string(kNames[static_cast<size_t>(intended)]) + " " + name_of(place));
  }
  return !fault.place.empty() && fault.place == name_of(place) ? fault.left : intended;
}

}  // namespace tessera::simt::emulation
