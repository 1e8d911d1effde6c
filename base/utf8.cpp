#include "base/utf8.h"

namespace tessera {
namespace {

unsigned byte_at(std::string_view text, size_t index) {
  return static_cast<unsigned char>(text[index]);
}

// Properties of a first byte: the length, and the range of the second byte. The range excludes
// overlong forms, surrogates and characters above U+10FFFF.
struct Lead {
  size_t size = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
};

Lead lead_of(unsigned byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  return {};
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  const unsigned first = byte_at(text, 0);
  if (first < 0x80) return {Utf8Step::Kind::valid, 1, first};
  const Lead lead = lead_of(first);
  if (lead.size == 0) return {Utf8Step::Kind::invalid, 1, 0};
  char32_t character = first & (0x7FU >> lead.size);
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::incomplete, i, 0};
    const unsigned byte = byte_at(text, i);
    const unsigned low = i == 1 ? lead.low : 0x80;
    const unsigned high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::invalid, i, 0};
    character = (character << 6U) | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::valid, lead.size, character};
}

std::string repair_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    repaired +=
        step.kind == Utf8Step::Kind::valid ? text.substr(0, step.size) : kReplacementCharacter;
    text.remove_prefix(step.size);
  }
  return repaired;
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.kind != Utf8Step::Kind::valid) return false;
    text.remove_prefix(step.size);
  }
  return true;
}

void append_utf8(std::string& text, char32_t character) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | (character >> 6U));
    put(0x80 | (character & 0x3FU));
  } else if (character < 0x10000) {
    put(0xE0 | (character >> 12U));
    put(0x80 | ((character >> 6U) & 0x3FU));
    put(0x80 | (character & 0x3FU));
  } else {
    put(0xF0 | (character >> 18U));
    put(0x80 | ((character >> 12U) & 0x3FU));
    put(0x80 | ((character >> 6U) & 0x3FU));
    put(0x80 | (character & 0x3FU));
  }
}

bool is_unicode_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

}  // namespace tessera
