#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "text/sentencepiece_model.h"

namespace tessera {

// Writes the file format that SentencePieceModel::parse reads, for tests.
class SentencePieceWriter {
 public:
  using Type = SentencePieceModel::Type;

  SentencePieceWriter& piece(const std::string& text, float score = 0, Type type = Type::normal) {
    std::string message = bytes_field(1, text);
    uint32_t bits = 0;
    std::memcpy(&bits, &score, sizeof bits);
    message += '\x15';
    for (int i = 0; i < 4; ++i) message += static_cast<char>(bits >> (8 * i));
    message += varint_field(3, static_cast<uint64_t>(type));
    out_ += bytes_field(1, message);
    return *this;
  }

  SentencePieceWriter& all_bytes() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      constexpr const char* kDigits = "0123456789ABCDEF";
      piece(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">", 0, Type::byte);
    }
    return *this;
  }

  SentencePieceWriter& trainer(bool byte_fallback, uint64_t model_type = 2) {
    out_ += bytes_field(2, varint_field(3, model_type) + varint_field(35, byte_fallback ? 1 : 0));
    return *this;
  }

  SentencePieceWriter& normalizer(bool dummy_prefix, bool collapse_spaces = false,
                                  const std::string& rules = {}) {
    std::string message = bytes_field(1, "nmt_nfkc");
    if (!rules.empty()) message += bytes_field(2, rules);
    message += varint_field(3, dummy_prefix ? 1 : 0) + varint_field(4, collapse_spaces ? 1 : 0);
    out_ += bytes_field(3, message);
    return *this;
  }

  const std::string& bytes() const { return out_; }

 private:
  static std::string varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7U) bytes += static_cast<char>(value | 0x80U);
    return bytes + static_cast<char>(value);
  }
  static std::string varint_field(uint64_t number, uint64_t value) {
    return varint(number << 3U) + varint(value);
  }
  static std::string bytes_field(uint64_t number, const std::string& bytes) {
    return varint(number << 3U | 2U) + varint(bytes.size()) + bytes;
  }

  std::string out_;
};

}  // namespace tessera
