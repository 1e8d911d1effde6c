#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/chat/tool_parser.h"

namespace tessera {

// Finds the end of a JSON value in a text that comes in parts. Reads brackets and strings only.
class JsonExtent {
 public:
  // Returns: false if the value has ended before `c`.
  bool push(char c);
  // True if no later character can belong to the value.
  bool closed() const { return closed_; }

 private:
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool closed_ = false;
};

// Reads a call written as {"name": "f", "arguments": {...}}, in parts. "parameters" is another name
// of the arguments. The members may have any order; others are ignored after the name.
class JsonCall {
 public:
  enum class State : uint8_t { open, ended, broken };

  // Returns: the number of bytes read; fewer than there are if the call has ended or is broken.
  std::size_t push(std::string_view text);

  State state() const { return state_; }
  const std::string& name() const { return name_; }  // empty: not known yet
  const std::string& raw() const { return raw_; }    // all that was read, until the name is known

  // Returns: the text of the arguments that came since the last call; nothing before the name.
  std::string take_arguments();

 private:
  enum class Place : uint8_t { object, key, colon, value, comma };

  bool read(char c);  // returns: false if `c` is not read
  bool read_value(char c);
  void end_key();
  void end_value();
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  State state_ = State::open;
  Place place_ = Place::object;
  JsonExtent extent_;
  std::string text_;  // of the key or value that is being read
  std::string key_;
  std::string name_;
  std::string raw_;
  std::string arguments_;
  bool any_arguments_ = false;
};

// A parser of notations whose calls are JSON objects.
class JsonToolParser : public ToolParser {
 protected:
  // Reads held text into the current call. A call that breaks before its name is known becomes
  // content, after `marker`.
  // Returns: open if more text is needed.
  JsonCall::State read_call(std::string_view marker, AnswerPart& out);

  // The same, and moves `place` to `ended` behind a call, and to `broken` behind content.
  // Returns: false if more text is needed.
  template <class Place>
  bool read_call(std::string_view marker, Place& place, Place ended, Place broken,
                 AnswerPart& out) {
    const JsonCall::State state = read_call(marker, out);
    if (state == JsonCall::State::open) return false;
    place = state == JsonCall::State::ended ? ended : broken;
    return true;
  }

  // Reads held text into the arguments of a call that begin_call() has begun.
  // Returns: true if they have ended, and with them the call.
  bool read_arguments(AnswerPart& out);

  void finish(AnswerPart& out) override;

 private:
  JsonCall call_;
  std::string marker_;  // of call_
  bool named_ = false;
  JsonExtent extent_;  // of read_arguments()
};

}  // namespace tessera
