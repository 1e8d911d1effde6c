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

// A compiled grammar, with its share of memory.
struct CompiledGrammar {
  std::shared_ptr<const TokenGrammar> grammar;
  int64_t bytes = 0;
};

// Turns specs into grammars of token ids, by xgrammar. Thread-safe.
class GrammarCompiler {
 public:
  // time: CPU time of one compilation. mask_bytes: of the masks of all grammars that are kept.
  // Returns: null if this server was built without xgrammar.
  static std::unique_ptr<GrammarCompiler> create(GrammarVocabulary vocabulary,
                                                 std::chrono::milliseconds time,
                                                 int64_t mask_bytes = 16 << 20);

  virtual ~GrammarCompiler() = default;

  // Works on the caller's thread, for at most the CPU time of create().
  // Requires: a JSON schema is one of prepare_schema().
  // Errors: InvalidArgument with the reason of the library, and its warnings, which name the parts
  // it would ignore; also for a grammar that is too slow to compile, or to follow.
  virtual absl::StatusOr<CompiledGrammar> compile(const GrammarSpec& spec) const = 0;
};

// The limits of a regular expression or a GBNF grammar, whose compilation they bound.
// Errors: InvalidArgument.
absl::Status check_notation(const GrammarSpec& spec);

}  // namespace tessera
