#include "server/generation/token_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/ops/sampling.h"
#include "server/base/error.h"

namespace tessera {

absl::StatusOr<std::vector<std::vector<int32_t>>> words_of(const Tokenizer& tokenizer,
                                                           const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> words;
  for (const std::string& text : texts) {
    for (const char* before : {"", " "}) {
      const TextSegment segment{before + text, /*parse_special=*/true};
      std::vector<int32_t> word = tokenizer.encode({&segment, 1}, /*add_bos=*/false);
      if (word.empty()) {
        return invalid_field("bad_words", "bad_words has a text without a token");
      }
      if (std::find(words.begin(), words.end(), word) == words.end()) {
        words.push_back(std::move(word));
      }
    }
  }
  return words;
}

absl::StatusOr<std::vector<uint32_t>> breakers_of(
    const Tokenizer& tokenizer, const std::optional<std::vector<std::string>>& given) {
  const std::vector<std::string> texts =
      given.value_or(std::vector<std::string>{"\n", ":", "\"", "*"});
  if (texts.empty()) {
    return std::vector<uint32_t>();
  }
  const int32_t vocab = tokenizer.vocab_size();
  std::vector<uint32_t> mask(static_cast<std::size_t>(mask_words(vocab)));
  std::vector<bool> found(texts.size());
  for (int32_t id = 0; id < vocab; ++id) {
    const std::string bytes = tokenizer.token_bytes(id, /*keep_special=*/true);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (bytes.find(texts[i]) != std::string::npos) {
        mask[static_cast<std::size_t>(id) / 32] |= uint32_t{1} << (id % 32);
        found[i] = true;
      }
    }
  }
  const auto missing = std::find(found.begin(), found.end(), false);
  if (given && missing != found.end()) {
    return invalid_field("dry_sequence_breakers",
                         fmt::format("dry_sequence_breakers: no token contains '{}'",
                                     texts[static_cast<std::size_t>(missing - found.begin())]));
  }
  return mask;
}

}  // namespace tessera
