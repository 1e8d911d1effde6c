#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "eval/lab/attention.h"
#include "eval/lab/method.h"
#include "eval/lab/ranking.h"

namespace tessera::lab {

// One query of a head group, seen by a method that evicts.
struct Observation {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int32_t position = 0;                // of the query
  int32_t generated = 0;               // number of the generated token; 0: in the prompt
  std::span<const int32_t> positions;  // of the entries
  MatrixView<const float> weights;     // [group, entries], attention's probabilities
};

// Base of methods that keep a state for each entry of each head, learn from each query's
// attention, and evict entries of the lowest scores: once after the prompt, and then when due.
// The newest entries stay in any case.
template <class State>
class Eviction : public Method {
 public:
  void fill(const Prompt& prompt, Cache& cache) override {
    prompt_tokens_ = prompt.size();
    budget_tokens_ = std::max(1, static_cast<int32_t>(budget_ * prompt.size()));
    kv_heads_ = prompt.shape.kv_heads;
    states_.assign(cache.heads.size(), {});
    std::vector<int32_t> all(prompt.tokens.size());
    std::iota(all.begin(), all.end(), 0);
    for_each_head(prompt, [&](int32_t layer, int32_t kv_head) {
      std::vector<State>& states = states_of(layer, kv_head);
      for (int32_t i = 0; i < prompt.size(); ++i) states.push_back(enter(i));
      for_each_group_row(prompt, layer, kv_head, first_observed(prompt.size()), prompt.size(),
                         [&](int32_t position, MatrixView<const float> weights) {
                           const auto seen = static_cast<size_t>(weights.cols);
                           observe(
                               {layer, kv_head, position, 0, std::span(all).first(seen), weights},
                               std::span(states).first(seen));
                         });
      add_tokens(prompt, layer, kv_head, keep(states, budget_tokens_, prompt.size() - 1), cache);
    });
  }

  void after_read(const Read& read, MatrixView<const float> weights, HeadCache& head) override {
    std::vector<State>& states = states_of(read.layer, read.kv_head);
    states.push_back(enter(read.position));
    const int32_t generated = read.position + 1 - prompt_tokens_;
    observe({read.layer, read.kv_head, read.position, generated, head.positions, weights}, states);
    if (is_due(head.size(), generated)) head.keep(keep(states, remaining(), read.position));
  }

  // Counts the state of each entry beside its key and value.
  int64_t bytes(const Cache& cache) const override {
    return Method::bytes(cache) + cache.entries() * state_bytes();
  }

 protected:
  // Returns: the state of a new entry.
  virtual State enter(int32_t /*position*/) const { return {}; }
  virtual void observe(const Observation& seen, std::span<State> states) const = 0;
  virtual double score(const State& state, int32_t now) const = 0;
  virtual int64_t state_bytes() const { return sizeof(State); }
  virtual int32_t recent() const { return 0; }  // newest entries that stay
  // The first query of a prompt that is observed.
  virtual int32_t first_observed(int32_t /*tokens*/) const { return 0; }
  // Returns: true if entries are evicted now that a generated token has been read.
  virtual bool is_due(int32_t entries, int32_t /*generated*/) const {
    return entries > budget_tokens_;
  }
  // Entries that an eviction leaves after a generated token.
  virtual int32_t remaining() const { return budget_tokens_; }

  int32_t budget_tokens() const { return budget_tokens_; }

  double budget_ = 0;  // share of the prompt's tokens

 private:
  std::vector<State>& states_of(int32_t layer, int32_t kv_head) {
    return states_[static_cast<size_t>(layer * kv_heads_ + kv_head)];
  }

  // Keeps `count` states.
  // Returns: their entries, ascending.
  std::vector<int32_t> keep(std::vector<State>& states, int32_t count, int32_t now) const {
    const auto size = static_cast<int32_t>(states.size());
    const int32_t newest = std::min({recent(), count, size});
    std::vector<float> scores;
    for (int32_t i = 0; i < size - newest; ++i) {
      scores.push_back(static_cast<float>(score(states[static_cast<size_t>(i)], now)));
    }
    std::vector<int32_t> kept = largest(scores, count - newest);
    for (int32_t i = size - newest; i < size; ++i) kept.push_back(i);
    for (size_t i = 0; i < kept.size(); ++i) {
      states[i] = states[static_cast<size_t>(kept[i])];
    }
    states.resize(kept.size());
    return kept;
  }

  std::vector<std::vector<State>> states_;  // of each head's entries
  int32_t prompt_tokens_ = 0;
  int32_t budget_tokens_ = 0;
  int32_t kv_heads_ = 0;
};

}  // namespace tessera::lab
