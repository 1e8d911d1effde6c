#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/detokenizer.h"

namespace tessera {

// Text of one generation, used by its answer's reader: token ids in, printable text out. Stop
// strings are found across token borders. They are part of the text only if they are included. Text
// that may become a stop string is held back until it cannot.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, Detokenizer::Options options,
             std::vector<std::string> stop, bool include_stop = false);

  // True if the stop string, or the stop token's text, is part of the text.
  bool includes_stop() const { return include_stop_; }

  // Returns: the text that is final now; nothing once stopped() is true.
  std::string push(int32_t token);

  // Returns: the remaining text, when the engine has finished; empty after a stop.
  std::string finish();

  // True if a stop string was found. The caller cancels the request and reports FinishReason::stop.
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return found_; }  // the one that was found

 private:
  std::string release(bool final);

  Detokenizer detokenizer_;
  std::vector<std::string> stop_;
  bool include_stop_;
  std::string held_;
  bool stopped_ = false;
  std::string found_;
};

}  // namespace tessera
