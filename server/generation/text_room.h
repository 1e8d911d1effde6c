#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/byte_budget.h"
#include "text/tokenizer.h"

namespace tessera {

// Room for answers of tokens and of their text. An answer may be far longer than its request: a
// token of two bytes in a request may stand for hundreds of bytes of text. So its bytes are known,
// and taken from the budget, before it is computed. Thread-safe.
class TextRoom {
 public:
  // rows: ids of the model, which may have more than the tokenizer: those have no text
  // max_bytes: of one answer. `budget`: not owned; null: without a bound of all answers.
  TextRoom(const Tokenizer& tokenizer, int32_t rows, std::size_t max_bytes, ByteBudget* budget);

  // Returns: the bytes of the longest token's text, at least 1.
  std::size_t longest_token() const { return longest_; }

  // Returns: room for these ids as an answer, with the text of each if `texts`. To be held until
  // the client has the answer.
  // Requires: ids of the tokenizer or of the model.
  // Errors: InvalidArgument if one answer may not have as many bytes. Unavailable if the answers
  // that wait leave no room.
  absl::StatusOr<ByteBudget::Share> for_tokens(std::span<const int32_t> ids, bool texts) const;

  // Returns: room for the text of the ids.
  // Errors: as for_tokens(). InvalidArgument besides, if an id is neither the tokenizer's nor the
  // model's.
  absl::StatusOr<ByteBudget::Share> for_text(std::span<const int32_t> ids) const;

 private:
  absl::StatusOr<ByteBudget::Share> take(const char* what, std::size_t tokens,
                                         std::size_t bytes) const;

  std::vector<uint32_t> bytes_;  // [ids], of each token's text
  std::size_t longest_ = 1;
  const std::size_t max_bytes_;
  ByteBudget* const budget_;
};

}  // namespace tessera
