#include "server/unique_id.h"

#include <atomic>
#include <random>
#include <string_view>

namespace tessera {

uint64_t unique_number() {
  static std::atomic<uint64_t> state = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  uint64_t z = state.fetch_add(0x9e3779b97f4a7c15);  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string unique_letters(size_t count) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string letters;
  for (uint64_t number = 0; letters.size() < count; number /= kLetters.size()) {
    number = number == 0 ? unique_number() : number;
    letters += kLetters[number % kLetters.size()];
  }
  return letters;
}

}  // namespace tessera
