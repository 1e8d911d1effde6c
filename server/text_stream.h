#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/text/detokenizer.h"

namespace tessera {

// The text side of one generation, on its connection's thread: token ids in, printable text out,
// stop strings found across token borders and never part of the text. What may become a stop
// string is held back until it cannot.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, Detokenizer::Options options,
             std::vector<std::string> stop);

  // The text that is now certain. Once stopped() is true it returns nothing more.
  std::string push(int32_t token);

  // The rest, when the engine has finished; empty after a stop.
  std::string finish();

  // A stop string was found: the caller cancels the request and reports FinishReason::stop.
  bool stopped() const { return stopped_; }

 private:
  std::string release(bool final);

  Detokenizer detokenizer_;
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tessera
