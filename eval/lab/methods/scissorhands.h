#pragma once

#include <bitset>

#include "eval/lab/eviction.h"

namespace tessera::lab {

// Drops the tokens that were unimportant to most queries of a history window (Scissorhands,
// algorithms 1 and 2). A token is unimportant to a query that gives it less than the even share of
// its attention. A full buffer loses half of its tokens at once, so drops are rare.
class Scissorhands final : public Cloned<Scissorhands, Eviction<std::bitset<512>>> {
 public:
  static std::unique_ptr<Method> make(Settings& settings, const Shape& /*shape*/) {
    auto method = std::make_unique<Scissorhands>();
    method->budget_ = settings.number("budget", 0.2);
    method->window_ = settings.integer("window", 400);
    method->recent_ = settings.integer("recent", 10);
    method->drop_ = settings.number("drop", 0.5);
    return method;
  }

 private:
  using Record = std::bitset<512>;  // the last queries, the newest first: 1 is unimportant

  int32_t first_observed(int32_t tokens) const override { return std::max(0, tokens - window_); }

  // A group's heads share what is dropped, so their mean attention counts.
  void observe(const Observation& seen, std::span<Record> records) const override {
    for (size_t i = 0; i < records.size(); ++i) {
      float sum = 0;
      for (int64_t head = 0; head < seen.weights.rows; ++head) sum += seen.weights.row(head)[i];
      const auto mean = sum / static_cast<float>(seen.weights.rows);
      records[i] <<= 1;
      records[i][0] = mean * static_cast<float>(records.size()) < 1;
    }
  }
  double score(const Record& record, int32_t /*now*/) const override {
    const int32_t beyond = std::max(0, static_cast<int32_t>(record.size()) - window_);
    return -static_cast<double>((record << static_cast<size_t>(beyond)).count());
  }
  // A bit for each query of the window.
  int64_t state_bytes() const override { return (window_ + 7) / 8; }
  int32_t recent() const override { return recent_; }
  int32_t remaining() const override {
    return budget_tokens() - static_cast<int32_t>(drop_ * budget_tokens());
  }

  int32_t window_ = 0;
  int32_t recent_ = 0;
  double drop_ = 0;  // share of the budget
};

}  // namespace tessera::lab
