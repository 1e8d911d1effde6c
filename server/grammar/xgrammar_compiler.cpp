#include <fmt/format.h>
#include <time.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "kernels/ops/sampling.h"
#include "server/base/thread_time.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/mask_cache.h"
#include "server/grammar/mask_key.h"
#include "server/grammar/thread_memory.h"

namespace tessera {
namespace {

// Warnings of the library on this thread while it compiled: each names a part that it would ignore.
thread_local std::string warnings;

// The library cannot be stopped, and some grammars take exponential time. So it is compiled to call
// tessera_grammar_checkpoint() below, which throws if a thread has used up the CPU time of a
// TimeLimit. Both in nanoseconds of this thread's CPU time; 0: none.
thread_local int64_t cpu_limit = 0;
thread_local int64_t cpu_deadline = 0;

// Limits the CPU time of the library's calls on this thread while it exists. The time begins at the
// first checkpoint, because most tokens need none, and a look at the clock is a system call.
class TimeLimit {
 public:
  explicit TimeLimit(int64_t nanoseconds) { cpu_limit = nanoseconds; }
  ~TimeLimit() { cpu_limit = cpu_deadline = 0; }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

// Limits the memory of a compilation on this thread while it exists. The library is asked at its
// checkpoints, so a single growing list may take more. Adds the memory to `total` meanwhile.
class MemoryLimit {
 public:
  MemoryLimit(int64_t bytes, std::atomic<int64_t>& total) : limit_(bytes), total_(total) {
    current = this;
  }
  ~MemoryLimit() {
    current = nullptr;
    total_ -= counted_;
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

  static void check_current() {
    if (current != nullptr) {
      current->check();
    }
  }

 private:
  void check() {
    const int64_t bytes = ThreadMemory::bytes();
    total_ += bytes - counted_;
    counted_ = bytes;
    if (bytes > limit_) {
      current = nullptr;  // destructors run while this is thrown
      throw std::runtime_error(
          fmt::format("takes more than {} KiB of memory to compile", limit_ >> 10));
    }
  }

  static thread_local MemoryLimit* current;
  const ThreadMemory memory_;
  const int64_t limit_;
  std::atomic<int64_t>& total_;
  int64_t counted_ = 0;
};
thread_local MemoryLimit* MemoryLimit::current = nullptr;

// In nanoseconds. One token, on the engine's thread: far above any grammar that try_steps() passes.
constexpr int64_t kStepTime = 200'000'000;
// A grammar is refused if random tokens that follow it take longer than this on average.
constexpr int64_t kMeanStepTime = 2'000'000;
constexpr int64_t kMeanTrialStepTime = 200'000;  // with the tokens of a trial
constexpr int kTriedSteps = 64;
// A GBNF grammar is tried with few tokens first: one that takes longer there would take many times
// as long with a model's.
constexpr int64_t kTrialTime = 50'000'000;
// The compile time divided by this number is left to free the memory of a slow grammar.
constexpr int64_t kLeftToEnd = 10;

constexpr int kWhitespace =
    16;  // at most between two parts of a JSON text, so that none is endless

// Returns: tokens of one byte, alone and repeated. Ambiguous rules are slow with long tokens.
xgrammar::TokenizerInfo trial_tokens() {
  std::vector<std::string> tokens;
  for (const std::size_t length : {1u, 2u, 4u, 8u}) {
    for (int byte = 0; byte < 256; ++byte) {
      tokens.emplace_back(length, static_cast<char>(byte));
    }
  }
  const auto end = static_cast<int32_t>(tokens.size());
  tokens.emplace_back();
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, end + 1, std::vector{end});
}

// words: its shape, which it points to.
DLTensor tensor_of(std::span<uint32_t> mask, int64_t& words) {
  return {.data = mask.data(),
          .device = {kDLCPU, 0},
          .ndim = 1,
          .dtype = xgrammar::GetBitmaskDLType(),
          .shape = &words,
          .strides = nullptr,
          .byte_offset = 0};
}

// A grammar, and the state that its constraints share.
struct SharedGrammar {
  xgrammar::CompiledGrammar compiled;
  std::shared_ptr<MaskCache> masks;  // of all grammars
  int32_t number = 0;                // of the grammar
};

class Constraint final : public TokenConstraint {
 public:
  explicit Constraint(const SharedGrammar& grammar)
      : grammar_(grammar), matcher_(grammar.compiled) {}

  void fill(std::span<uint32_t> mask) override {
    follow();
    if (broken_ || matcher_.IsTerminated()) {
      std::fill(mask.begin(), mask.end(), 0);
    } else if (!copy_kept(mask)) {
      compute(mask);
    }
  }

  void accept(int32_t token) override {
    follow();
    accepted_ = token;
  }

  void take_back(int32_t count) override {
    if (accepted_.has_value()) {  // the matcher has not seen the last one
      accepted_.reset();
      --count;
    }
    if (count > 0 && !broken_) {
      matcher_.Rollback(count);
    }
  }

 private:
  // Returns: false if no mask of this state is kept. The key then has all its rows.
  bool copy_kept(std::span<uint32_t> mask) {
    key_.begin(grammar_.number, matcher_);
    while (key_.add_row(matcher_)) {
      if (const MaskCache::Mask kept = grammar_.masks->find(key_.all())) {
        std::copy(kept->begin(), kept->end(), mask.begin());
        return true;
      }
    }
    return false;
  }

  void compute(std::span<uint32_t> mask) {
    int64_t words = std::ssize(mask);
    DLTensor tensor = tensor_of(mask, words);
    try {
      const TimeLimit limit(kStepTime);
      const RowsRead read(matcher_);
      matcher_.FillNextTokenBitmask(&tensor);
      if (const auto key = key_.with(read.rows()); !key.empty()) {
        grammar_.masks->put(key, mask);
      }
    } catch (const std::exception&) {  // the matcher's state may be half changed
      broken_ = true;
      std::fill(mask.begin(), mask.end(), 0);
    }
  }

  // Moves the matcher behind the token that was accepted last.
  void follow() {
    if (!accepted_.has_value() || broken_) {
      return;
    }
    try {
      const TimeLimit limit(kStepTime);
      broken_ = !matcher_.AcceptToken(*std::exchange(accepted_, std::nullopt));
    } catch (const std::exception&) {
      broken_ = true;
    }
  }

  const SharedGrammar grammar_;
  xgrammar::GrammarMatcher matcher_;
  MaskKey key_;
  std::optional<int32_t> accepted_;  // the matcher is before it
  bool broken_ = false;
};

class Compiled final : public TokenGrammar {
 public:
  explicit Compiled(SharedGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<TokenConstraint> begin() const override {
    return std::make_unique<Constraint>(grammar_);
  }

 private:
  const SharedGrammar grammar_;
};

// The library's compilers. Their functions are thread-safe, and only lack `const`.
struct Compilers {
  explicit Compilers(const GrammarVocabulary& vocabulary)
      : of_model(
            xgrammar::TokenizerInfo(vocabulary.bytes, xgrammar::VocabType::RAW,
                                    static_cast<int>(vocabulary.bytes.size()), vocabulary.end_ids),
            /*max_threads=*/1, /*cache_enabled=*/false),
        of_trial(trial_tokens(), /*max_threads=*/1, /*cache_enabled=*/false) {}

  xgrammar::GrammarCompiler of_model;
  xgrammar::GrammarCompiler of_trial;
};

class XgrammarCompiler final : public GrammarCompiler {
 public:
  // The library sorts a vocabulary for a tenth of a second, which no start waits for.
  XgrammarCompiler(GrammarVocabulary vocabulary, const Limits& limits)
      : time_(limits.time),
        compile_bytes_(limits.compile_bytes),
        vocab_(std::ssize(vocabulary.bytes)),
        compilers_(std::async(std::launch::async,
                              [vocabulary = std::move(vocabulary)]() mutable {
                                const GrammarVocabulary freed_here = std::move(vocabulary);
                                return std::make_unique<Compilers>(freed_here);
                              })),
        masks_(std::make_shared<MaskCache>(limits.mask_bytes)) {}

  absl::StatusOr<CompiledGrammar> compile(const GrammarSpec& spec) const override {
    try {
      compilers_.wait();
      warnings.clear();
      const MemoryLimit memory(compile_bytes_, compiling_);
      try_few_tokens(spec);
      const TimeLimit limit(time_.count() - time_.count() / kLeftToEnd);
      const xgrammar::CompiledGrammar compiled = compiled_of(spec);
      if (!warnings.empty()) {
        return absl::InvalidArgumentError(std::exchange(warnings, {}));
      }
      try_steps(xgrammar::GrammarMatcher(compiled), vocab_, kMeanStepTime);
      // The library's own count, MemorySizeBytes(), is up to a third less.
      const int64_t bytes = ThreadMemory::bytes();
      return CompiledGrammar{
          std::make_shared<Compiled>(SharedGrammar{compiled, masks_, next_number_++}), bytes};
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(error.what());
    }
  }

  int64_t compiling_bytes() const override { return compiling_; }
  int64_t mask_bytes() const override { return masks_->bytes(); }

 private:
  // Throws if a grammar of several rules takes too long with the tokens of a trial.
  void try_few_tokens(const GrammarSpec& spec) const {
    const std::size_t first = spec.text.find("::=");
    if (spec.kind == GrammarSpec::Kind::gbnf &&
        spec.text.find("::=", first + 1) != std::string::npos) {
      const TimeLimit limit(std::min(kTrialTime, time_.count()));
      const xgrammar::CompiledGrammar compiled =
          compilers_.get()->of_trial.CompileGrammar(spec.text);
      try_steps(xgrammar::GrammarMatcher(compiled), compiled.GetTokenizerInfo().GetVocabSize(),
                kMeanTrialStepTime);
    }
  }

  // Throws if the grammar is too slow to follow: it would hold up all sequences of a step.
  static void try_steps(xgrammar::GrammarMatcher matcher, int64_t vocab, int64_t mean_time) {
    std::vector<uint32_t> mask(static_cast<std::size_t>(mask_words(vocab)));
    int64_t words = std::ssize(mask);
    std::mt19937 random(1);
    const int64_t start = thread_nanoseconds();
    int steps = 0;
    for (; steps < kTriedSteps && !matcher.IsTerminated(); ++steps) {
      std::fill(mask.begin(), mask.end(), 0);
      DLTensor tensor = tensor_of(mask, words);
      matcher.FillNextTokenBitmask(&tensor);
      const int32_t token = some_token(mask, vocab, random);
      if (token < 0 || !matcher.AcceptToken(token)) {
        break;
      }
    }
    if (thread_nanoseconds() - start > mean_time * std::max(steps, kTriedSteps / 4)) {
      throw std::runtime_error("is too ambiguous: each token takes too long");
    }
  }

  // Returns: a random token of the mask, the first one from a random place on; -1 if it is empty.
  static int32_t some_token(std::span<const uint32_t> mask, int64_t vocab, std::mt19937& random) {
    const auto first = static_cast<int64_t>(random() % static_cast<uint64_t>(vocab));
    for (int64_t i = 0; i < vocab; ++i) {
      const int64_t token = (first + i) % vocab;
      if (allows(mask.data(), token)) {
        return static_cast<int32_t>(token);
      }
    }
    return -1;
  }

  xgrammar::CompiledGrammar compiled_of(const GrammarSpec& spec) const {
    xgrammar::GrammarCompiler& compiler = compilers_.get()->of_model;
    switch (spec.kind) {
      case GrammarSpec::Kind::json:
        return compile_schema(compiler, R"({"type":"object","additionalProperties":true})");
      case GrammarSpec::Kind::json_schema:
        return compile_schema(compiler, spec.text);
      case GrammarSpec::Kind::regex:
        return compiler.CompileRegex(spec.text);
      case GrammarSpec::Kind::gbnf:
        return compiler.CompileGrammar(spec.text);
      case GrammarSpec::Kind::structural_tag:
        return compiler.CompileStructuralTag(spec.text);
    }
    throw std::logic_error("a kind of grammar without a case");
  }
  static xgrammar::CompiledGrammar compile_schema(xgrammar::GrammarCompiler& compiler,
                                                  const std::string& schema) {
    return compiler.CompileJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                      /*strict_mode=*/true, kWhitespace);
  }

  const std::chrono::nanoseconds time_;
  const int64_t compile_bytes_;
  const int64_t vocab_;
  const std::shared_future<std::unique_ptr<Compilers>> compilers_;
  const std::shared_ptr<MaskCache> masks_;  // of all grammars
  mutable std::atomic<int32_t> next_number_ = 0;
  mutable std::atomic<int64_t> compiling_ = 0;  // bytes of the compilations that run
};

}  // namespace

std::unique_ptr<GrammarCompiler> GrammarCompiler::create(GrammarVocabulary vocabulary,
                                                         const Limits& limits) {
  return std::make_unique<XgrammarCompiler>(std::move(vocabulary), limits);
}

}  // namespace tessera

// The library calls this in place of one in 256 of its debug checks (deploy/xgrammar.sh).
// Returns: false.
extern "C" bool tessera_grammar_checkpoint() {
  using namespace tessera;
  if (cpu_limit == 0) {
    return false;
  }
  const int64_t now = thread_nanoseconds();
  if (cpu_deadline == 0) {
    cpu_deadline = now + cpu_limit;
  } else if (now > cpu_deadline) {
    cpu_limit = cpu_deadline = 0;  // destructors run while this is thrown
    throw std::runtime_error("takes too long");
  }
  MemoryLimit::check_current();
  return false;
}

// Built with XGRAMMAR_LOG_CUSTOMIZE, the library calls these. It chose the names.
// NOLINTBEGIN(readability-identifier-naming)
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/,
                               const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int /*level*/,
                    const std::string& message) {
  if (tessera::warnings.empty()) {
    tessera::warnings = message;
  }
}

}  // namespace xgrammar
// NOLINTEND(readability-identifier-naming)
