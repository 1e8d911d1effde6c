#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// A compiled regular expression that splits text into words, in the dialect of tokenizer.json's
// pre-tokenizers. Immutable; split() may be called from any thread.
class SplitPattern {
 public:
  // Errors: InvalidArgument with the byte offset of the syntax error.
  static absl::StatusOr<SplitPattern> compile(const std::string& source);

  // Appends the matches and the text between them, in order and without gaps. If the expression
  // exceeds its work limit, the rest of the text is one word. The words are views into `text`.
  // Requires: `text` is UTF-8.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled)
      : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tessera
