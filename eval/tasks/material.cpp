#include "eval/tasks/material.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace tessera {
namespace {

// CRC-32 as in zlib.
uint32_t crc32(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
    }
  }
  return ~crc;
}

// Returns: the sentences, without the space between them.
std::vector<std::string_view> split_sentences(std::string_view text) {
  std::vector<std::string_view> sentences;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool space = text[i] == ' ' || text[i] == '\n';
    const bool ends = i > begin && std::string_view(".!?\"").find(text[i - 1]) != text.npos;
    if (space && ends) {
      sentences.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return sentences;
}

}  // namespace

bool is_held_out(std::string_view material) {
  return crc32(material) % 8 == 0;
}

Material::Material(uint64_t seed, std::string_view text)
    : random_(seed), sentences_(split_sentences(text)) {
  TESSERA_CHECK(sentences_.size() > 1, "prose has sentences");
}

std::string Material::draw(Kind kind) {
  if (kind == Kind::word || kind == Kind::name) {
    const auto words = kind == Kind::word ? everyday_words() : first_names();
    return std::string(random_.choice(words));
  }
  std::string drawn;
  do {
    drawn = kind == Kind::number ? digits("0123456789", random_.between(4, 6))
                                 : digits("0123456789abcdef", 4 * random_.between(1, 2));
  } while (!is_held_out(drawn));
  return drawn;
}

std::string Material::prose() {
  const size_t count = random_.between(1, 2);
  const size_t first = random_.below(sentences_.size() - 1);
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += ' ';
    text += absl::StrJoin(absl::StrSplit(std::string(sentences_[first + i]),
                                         absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty()),
                          " ");
  }
  return text;
}

std::string Material::digits(std::string_view alphabet, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += alphabet[random_.below(alphabet.size())];
  }
  return text;
}

}  // namespace tessera
