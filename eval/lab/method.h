#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "eval/lab/cache.h"
#include "eval/lab/model.h"
#include "eval/lab/prompt.h"
#include "eval/lab/settings.h"

namespace tessera::lab {

// What one KV head reads for one token.
struct Read {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int32_t token = 0;                // its id
  int32_t position = 0;             // of the token, which is the newest entry
  float scale = 0;                  // of q . k
  MatrixView<const float> queries;  // [group, head_dim], after RoPE
};

// A method of the literature over plain keys and values. It decides after a prompt, before each
// read and after it. Its state belongs to one sequence: clone() copies it for a fork.
class Method {
 public:
  virtual ~Method() = default;
  virtual std::unique_ptr<Method> clone() const = 0;

  // Computes a prompt and fills an empty cache with what the method keeps of it. The default
  // computes it with full attention and calls fill(). A method that changes how prompts are
  // computed overrides it.
  // Returns: the logits after the last token, [vocab].
  virtual std::vector<float> compute_prompt(Model& model, std::span<const int32_t> tokens,
                                            Cache& cache);

  // Fills an empty cache with what the method keeps of a prompt. The default keeps all of it.
  virtual void fill(const Prompt& prompt, Cache& cache) { add_all_tokens(prompt, cache); }

  // Called for each layer of a token, after its keys and values are stored and before heads read.
  virtual void before_read(const LayerStep& /*step*/, Cache& /*cache*/) {}

  // Chooses what a query head reads. The newest entry is the token's own.
  // query: of the group, a row of read.queries
  // Returns: ascending indices of entries; no value: all of them.
  virtual std::optional<std::vector<int32_t>> choose(const Read& /*read*/, int32_t /*query*/,
                                                     const HeadCache& /*head*/) {
    return std::nullopt;
  }

  // Called after a token has been read and before the next one is stored. The method may drop or
  // replace entries.
  // weights: [group, entries], attention's probabilities; 0 for what a query head did not read
  virtual void after_read(const Read& /*read*/, MatrixView<const float> /*weights*/,
                          HeadCache& /*head*/) {}

  // Called after all layers of a token.
  virtual void after_token(Cache& /*cache*/) {}

  // Returns: bytes that a real implementation holds for this sequence, with everything that it
  // needs beside keys and values. The default counts entries in f16.
  virtual int64_t bytes(const Cache& cache) const;
};

// Defines clone() by the copy constructor.
template <class Derived, class Base = Method>
class Cloned : public Base {
 public:
  using Base::Base;
  std::unique_ptr<Method> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

// One line of the table of methods.
struct MethodLine {
  std::string_view name;   // in --method
  std::string_view paper;  // authors' name of it, year, section or algorithm that is followed
  std::string_view what_it_does;
  std::string_view deviation;  // from the paper, where it does not describe a step; or empty
  std::unique_ptr<Method> (*make)(Settings&, const Shape&);
  bool needs_draft = false;  // a second model of the same vocabulary
};

// Returns: all methods, in the order of the documents.
std::span<const MethodLine> methods();

// Returns: the table of methods in Markdown, a row for each.
std::string describe_methods();

// A method as --method names it: "h2o" or "h2o:budget=0.1".
struct NamedMethod {
  std::string name;
  const MethodLine* line = nullptr;
  std::unique_ptr<Method> method = nullptr;  // before any prompt
};

// Parses a list separated by commas; "all": every method of the table that needs no draft, or all
// with a draft model.
// Returns: `full` first, then the others in the order of the list, without duplicates.
// Errors: InvalidArgument names an unknown method or number, and the known ones, or a method that
// needs a draft model.
absl::StatusOr<std::vector<NamedMethod>> find_methods(const std::string& list, const Shape& shape,
                                                      bool has_draft);

}  // namespace tessera::lab
