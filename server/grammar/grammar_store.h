#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/token_grammar.h"
#include "server/grammar/grammar_compiler.h"
#include "server/paced_work.h"

namespace tessera {

struct GrammarLimits {
  int threads = 2;                             // that compile
  int64_t cache_bytes = 64 << 20;              // of compiled grammars that are kept
  int64_t queue_bytes = 16 << 20;              // of specs that wait or are compiled
  std::chrono::milliseconds patience{30'000};  // of one request, for other grammars and its own
  EngineLoad engine{};                         // paces the threads (PacedWork)
};

// Compiles grammars on threads of its own, and keeps those used last. Thread-safe.
class GrammarStore {
 public:
  using Grammar = std::shared_ptr<const TokenGrammar>;
  using Done = std::function<void(absl::StatusOr<Grammar>)>;

  // compiler: null makes get() refuse every spec.
  explicit GrammarStore(std::unique_ptr<GrammarCompiler> compiler, GrammarLimits limits = {});
  ~GrammarStore();  // waits for the running compilation; requests that wait are told `Unavailable`

  // Calls `done` once: at once if the grammar is kept, else later on a thread of the store. `done`
  // must not block, nor call the store.
  // Errors: InvalidArgument (the spec is refused, or takes longer than `patience`);
  // ResourceExhausted (too many specs wait); Unimplemented (no compiler).
  void get(const GrammarSpec& spec, Done done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
