#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// A regular expression that cuts text into words, as tokenizer.json's pre-tokenizers give it.
// Immutable; any thread may split.
class SplitPattern {
 public:
  // Errors: InvalidArgument with the place where the expression is malformed.
  static absl::StatusOr<SplitPattern> compile(const std::string& source);

  // Appends the matches and what lies between them, in order and without gaps. From where the
  // expression exceeds its work limit the rest of the text is one word.
  // Requires: `text` is UTF-8.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled)
      : compiled_(std::move(compiled)) {}

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tessera
