#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/chat/answer_part.h"

namespace tessera {

// Splits a generated text into content and calls of tools, as it is generated. Text that may become
// the beginning of a call is held back until it cannot. If it becomes no call, it is content.
class ToolParser {
 public:
  virtual ~ToolParser() = default;

  // Reads more text. `end`: it is the last.
  void push(std::string_view text, bool end, AnswerPart& out) {
    held_ += text;
    while (!held_.empty() && step(end, out)) {
    }
    if (end) {
      finish(out);
    }
  }

  // Calls that have begun, and those that have ended.
  int32_t begun() const { return begun_; }
  int32_t ended() const { return ended_; }

 protected:
  // Reads some of held_. Returns: false if it needs more text.
  virtual bool step(bool end, AnswerPart& out) = 0;

  // Called at the end of the text, when held_ is empty: returns to the content the text of a call
  // that was never named.
  virtual void finish(AnswerPart& out) = 0;

  // Moves held text to the content until the first of `markers`, which it drops with blanks before
  // it.
  // Returns: the marker that was found; empty if there is none yet.
  std::string_view content_until(std::span<const std::string_view> markers, bool end,
                                 AnswerPart& out);

  // Says whether a text comes next.
  enum class Next : uint8_t { yes, no, unknown };
  Next next_is(std::string_view text, bool end) const;

  void skip_blanks() { held_.erase(0, held_.find_first_not_of(" \t\r\n")); }

  void begin_call(std::string name, AnswerPart& out);
  void add_arguments(std::string_view text, AnswerPart& out);
  void end_call() { ++ended_; }

  // Letters of an id. Templates of Mistral accept nine of them only.
  virtual std::string make_id() const;

  std::string held_;

 private:
  int32_t begun_ = 0;
  int32_t ended_ = 0;
};

}  // namespace tessera
