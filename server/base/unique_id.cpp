#include "server/base/unique_id.h"

#include <openssl/rand.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace tessera {
namespace {

// Random bytes of one thread. One call of the library gives many of them, because a call costs
// more than the bytes.
class RandomBytes {
 public:
  void take(unsigned char* out, std::size_t count) {
    if (next_ + count > bytes_.size()) {
      TESSERA_CHECK(RAND_bytes(bytes_.data(), static_cast<int>(bytes_.size())) == 1,
                    "the system has random bytes");
      next_ = 0;
    }
    std::memcpy(out, bytes_.data() + next_, count);
    std::memset(bytes_.data() + next_, 0, count);
    next_ += count;
  }

 private:
  std::array<unsigned char, 512> bytes_{};
  std::size_t next_ = bytes_.size();
};

thread_local RandomBytes random_bytes;

}  // namespace

uint64_t unique_number() {
  unsigned char bytes[sizeof(uint64_t)];
  random_bytes.take(bytes, sizeof(bytes));
  uint64_t number = 0;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

std::string unique_letters(std::size_t count) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr std::size_t kUsable =
      256 / kLetters.size() * kLetters.size();  // others favour some letters
  std::string letters;
  letters.reserve(count);
  while (letters.size() < count) {
    unsigned char byte = 0;
    random_bytes.take(&byte, 1);
    if (byte < kUsable) {
      letters += kLetters[byte % kLetters.size()];
    }
  }
  return letters;
}

}  // namespace tessera
