#include "server/generation/text_room.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

// Bytes of an id in an answer: in the list and in the message that is sent.
constexpr std::size_t kIdBytes = 16;

// Bytes of the text of a token besides its own, which are there twice: its string in the answer.
constexpr std::size_t kTextBytes = 64;

// Most bytes of a byte of a token in a text: one that is no valid UTF-8 becomes U+FFFD, which has
// three. The text is there twice: in the answer and in the message that is sent.
constexpr std::size_t kPrintedBytes = 2 * 3;

}  // namespace

TextRoom::TextRoom(const Tokenizer& tokenizer, int32_t rows, std::size_t max_bytes,
                   ByteBudget* budget)
    : max_bytes_(max_bytes), budget_(budget) {
  bytes_.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::size_t bytes = tokenizer.token_bytes(id, /*keep_special=*/true).size();
    bytes_.push_back(static_cast<uint32_t>(bytes));
    longest_ = std::max(longest_, bytes);
  }
  bytes_.resize(std::max(bytes_.size(), static_cast<std::size_t>(rows)));
}

absl::StatusOr<ByteBudget::Share> TextRoom::for_tokens(std::span<const int32_t> ids,
                                                       bool texts) const {
  std::size_t bytes = ids.size() * kIdBytes;
  for (const int32_t id : texts ? ids : std::span<const int32_t>()) {
    bytes += kTextBytes + 2 * std::size_t{bytes_[static_cast<std::size_t>(id)]};
  }
  return take("the list", ids.size(), bytes);
}

absl::StatusOr<ByteBudget::Share> TextRoom::for_text(std::span<const int32_t> ids) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= bytes_.size()) {
      return absl::InvalidArgumentError(fmt::format(
          "token {} is {}, the vocabulary has ids 0 to {}", i, ids[i], bytes_.size() - 1));
    }
    bytes += kPrintedBytes * bytes_[static_cast<std::size_t>(ids[i])];
  }
  return take("the text", ids.size(), bytes);
}

absl::StatusOr<ByteBudget::Share> TextRoom::take(const char* what, std::size_t tokens,
                                                 std::size_t bytes) const {
  if (bytes > max_bytes_) {
    return absl::InvalidArgumentError(
        fmt::format("{} of these {} tokens may take {} bytes of memory, this server allows {} for "
                    "one answer: ask for fewer at a time",
                    what, tokens, bytes, max_bytes_));
  }
  return take_bytes(budget_, bytes);
}

}  // namespace tessera
