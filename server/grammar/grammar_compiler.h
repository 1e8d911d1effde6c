#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/token_grammar.h"
#include "server/grammar/grammar_spec.h"

namespace tessera {

// A model's tokens as grammars need them.
struct GrammarVocabulary {
  std::vector<std::string> bytes;  // [vocab] of the logits; empty: never part of a text
  std::vector<int32_t> end_ids;    // ends of sequence, allowed when a text is complete
};

// Most memory of one compilation, without the grammar's text. Measured: 34 MiB in the second of a
// default --grammar-time, for 300 integers with bounds of 15 digits; 16 MiB for a text of 60 KB.
inline constexpr int64_t kCompileBytes = 32 << 20;

// A compiled grammar, with its share of memory.
struct CompiledGrammar {
  std::shared_ptr<const TokenGrammar> grammar;
  int64_t bytes = 0;
};

// Turns specs into grammars of token ids, by xgrammar. Thread-safe.
class GrammarCompiler {
 public:
  struct Limits {
    std::chrono::milliseconds time;         // CPU time of one compilation
    int64_t mask_bytes = 16 << 20;          // of the masks of all grammars that are kept
    int64_t compile_bytes = kCompileBytes;  // of one compilation
  };
  // Prepares the vocabulary on a thread of its own, for which the first compile() waits.
  // Returns: null if this server was built without xgrammar.
  static std::unique_ptr<GrammarCompiler> create(GrammarVocabulary vocabulary,
                                                 const Limits& limits);

  virtual ~GrammarCompiler() = default;

  // Works on the caller's thread, within the limits of create().
  // Requires: a JSON schema is one of prepare_schema().
  // Errors: InvalidArgument with the reason of the library, and its warnings, which name the parts
  // it would ignore; also for a grammar that is too slow to compile, or to follow, or takes too
  // much memory meanwhile.
  virtual absl::StatusOr<CompiledGrammar> compile(const GrammarSpec& spec) const = 0;

  // Returns: bytes of the compilations that run, and of the masks that are kept. Any thread.
  virtual int64_t compiling_bytes() const { return 0; }
  virtual int64_t mask_bytes() const { return 0; }
};

// The limits of a regular expression or a GBNF grammar, whose compilation they bound.
// Errors: InvalidArgument.
absl::Status check_notation(const GrammarSpec& spec);

}  // namespace tessera
