#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/chat/answer_reader.h"
#include "server/generation/answer_end.h"
#include "server/generation/service.h"
#include "server/grpc/wire.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// The answer of one sequence: the engine's tokens in, fields of GenerateResponse out. Used by the
// owner of the stream's writing side.
class AnswerFields {
 public:
  struct Args {
    Service& service;
    Generation generation;
    std::optional<AnswerNotation> notation{};  // of a chat
    bool reasoning = true;                     // thoughts are sent
    bool logprobs = false;
    AnswerEnd end{};
    std::shared_ptr<const std::string> echo;  // the text begins with it
  };
  explicit AnswerFields(Args args);

  // True while a part of the echo is not added. Tokens follow it.
  bool has_echo() const { return echoed_ < args_.echo->size(); }
  // Adds a part of the echo that one message may have.
  void add_echo(v1::GenerateResponse& out);

  // Adds a token, and the text that became known by it. After ended(): nothing.
  void add(const SeenToken& token, v1::GenerateResponse& out);

  // True if the text has ended the sequence: by a stop string, or with the last call that it may
  // have. The engine is told.
  bool ended() const { return args_.generation.text.stopped() || complete_; }

  // Adds the text that was held back, and the reason.
  void finish(const Finish& finish, v1::GenerateResponse& out);

  int32_t tokens() const { return tokens_; }

  // Returns: the mean log probability of the tokens.
  double mean_logprob() const;

 private:
  void read(const std::string& piece, bool end, v1::GenerateResponse& out);

  Args args_;
  std::optional<AnswerReader> reader_;  // of a chat
  std::size_t echoed_ = 0;              // bytes of the echo that are added
  bool complete_ = false;
  int32_t tokens_ = 0;
  double logprob_sum_ = 0;
};

}  // namespace tessera
