#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/token_grammar.h"
#include "server/base/paced_work.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/grammar_queue.h"

namespace tessera {

inline constexpr int kCompileThreads = 4;

struct GrammarLimits {
  int threads = kCompileThreads;               // that compile; a client has half of them at most
  int64_t grammar_bytes = 96 << 20;            // of compiled grammars, kept or in use
  int64_t queue_bytes = 16 << 20;              // of specs that wait or are compiled
  std::chrono::milliseconds patience{30'000};  // of one request, for other grammars and its own
  EngineLoad engine{};                         // paces the threads (PacedWork)
};

// The memory of grammars is divided: a part for masks (GrammarCompiler::create), one for specs that
// wait, the rest for compiled grammars.
inline constexpr std::size_t kMaskShare = 8;

// Returns: the limits of a store within so many bytes, without the part for masks.
GrammarLimits grammar_limits(std::size_t bytes, const EngineLoad& engine);

// Compiles grammars on threads of its own, and keeps those used last. Clients take turns, and none
// takes the memory of all (GrammarQueue, CompiledGrammars). Thread-safe.
class GrammarStore {
 public:
  using Grammar = std::shared_ptr<const TokenGrammar>;
  using Done = GrammarQueue::Done;

  // compiler: null makes get() refuse every spec.
  explicit GrammarStore(std::unique_ptr<GrammarCompiler> compiler, GrammarLimits limits = {});
  ~GrammarStore();  // waits for the running compilation; requests that wait are told `Unavailable`

  // Calls `done` once: at once if the grammar is kept, else later on a thread of the store. `done`
  // must not block, nor call the store. Takes time in proportion to the text.
  // Errors: InvalidArgument (the spec is refused, takes longer than `patience`, or too much
  // memory); ResourceExhausted (too many specs of this client wait, or its grammars in use leave
  // no memory); Unimplemented (no compiler).
  void get(const GrammarClient& client, const GrammarSpec& spec, Done done);

  // Drops half of the grammars that are kept, because memory is short.
  void shrink();

  int64_t bytes() const;            // of grammars, kept or in use, and of specs that wait
  int64_t compiling_bytes() const;  // of compilations that run
  int64_t mask_bytes() const;       // of masks that are kept

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
