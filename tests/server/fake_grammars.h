#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/grammar/grammar_compiler.h"

namespace tessera {

// A compiler without a library. It takes 300 ms for texts that begin with "slow", refuses those
// that end with "bad", and makes of every other text a grammar that allows no token.
class FakeGrammarCompiler final : public GrammarCompiler {
 public:
  absl::StatusOr<CompiledGrammar> compile(const GrammarSpec& spec) const override {
    if (spec.text.starts_with("slow")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    if (spec.text.ends_with("bad")) {
      return absl::InvalidArgumentError("is bad");
    }
    return CompiledGrammar{std::make_shared<Nothing>(), 1000};
  }

 private:
  class Nothing final : public TokenGrammar {
   public:
    std::unique_ptr<TokenConstraint> begin() const override { return nullptr; }
  };
};

}  // namespace tessera
