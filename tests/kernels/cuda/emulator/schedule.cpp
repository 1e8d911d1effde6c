#include "tests/kernels/cuda/emulator/schedule.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "base/check.h"

namespace tessera::simt::emulation {
namespace {

constexpr char kVariable[] = "TESSERA_EMULATED_ORDER";

std::string name_of_process() {
  const char* name = std::getenv(kVariable);
  const std::string chosen = name != nullptr ? name : "shuffled:1";
  std::fprintf(stderr, "emulated threads: %s=%s\n", kVariable, chosen.c_str());
  return chosen;
}

}  // namespace

Schedule::Schedule(const std::string& name) : name_(name) {
  const std::string seeded = "shuffled:";
  uint32_t seed = 0;
  if (name.starts_with(seeded)) {
    order_ = Order::shuffled;
    const char* end = name.data() + name.size();
    const auto [last, error] = std::from_chars(name.data() + seeded.size(), end, seed);
    TESSERA_CHECK(error == std::errc{} && last == end, "a shuffled order needs a seed: shuffled:1");
  } else {
    TESSERA_CHECK(name == "ascending" || name == "descending", "an unknown order of threads");
    order_ = name == "ascending" ? Order::ascending : Order::descending;
  }
  random_.seed(seed);
}

Schedule& Schedule::of_process() {
  static Schedule schedule(name_of_process());
  return schedule;
}

void Schedule::arrange(std::span<int32_t> numbers) {
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order_ == Order::descending) {
    std::reverse(numbers.begin(), numbers.end());
  } else if (order_ == Order::shuffled) {
    std::shuffle(numbers.begin(), numbers.end(), random_);
  }
}

bool Schedule::goes_on() {
  return order_ == Order::descending || (order_ == Order::shuffled && random_() % 4 != 0);
}

}  // namespace tessera::simt::emulation
