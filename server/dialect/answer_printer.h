#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/generation/answer_text.h"

namespace tessera {

// Prints one answer in a dialect of the API. Used by the answer's reader.
class AnswerPrinter {
 public:
  virtual ~AnswerPrinter() = default;

  // Returns: the body of a whole answer, or of an error instead of one.
  virtual std::string whole(std::span<const ChoiceText> choices, const Usage& usage) = 0;
  virtual std::string error(const absl::Status& status) = 0;

  // Return: server-sent events. begin() comes first, with the prompt's usage; then parts, as they
  // are generated; end() or failure() is the last. In a part, a first call without an id continues
  // the call of an earlier part, and the text came after it. A call with an id begins after the
  // text.
  virtual std::string begin(const Usage& usage) = 0;
  virtual std::string part(const ChoiceText& part, const Usage& usage) = 0;
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string failure(const absl::Status& status) = 0;

  // Returns: a sign of life of a silent stream: a comment, which clients of server-sent events
  // skip. May come before begin().
  virtual std::string ping() { return ": ping\n\n"; }

  // True if end() shows the engine's final numbers.
  virtual bool shows_usage() const = 0;

  // True if end() repeats the text of the whole stream.
  virtual bool holds_text() const { return false; }
  // Returns: about how many bytes begin() and end() would repeat now.
  virtual std::size_t held_bytes() const { return 0; }
};

}  // namespace tessera
