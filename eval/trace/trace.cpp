#include "eval/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <queue>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eval/measurement/seeded_random.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

class Generator {
 public:
  Generator(const TraceStatistics& statistics, uint64_t seed)
      : statistics_(statistics), random_(seed) {}

  std::vector<TraceRequest> run() {
    double next_first = 0;
    const double firsts_per_ms =
        statistics_.requests_per_second * (1 - statistics_.continued_share) / 1000;
    while (std::ssize(trace_) < statistics_.requests) {
      if (pending_.empty() || static_cast<double>(pending_.top().first) > next_first) {
        add(static_cast<int64_t>(next_first), {0}, statistics_.first_blocks_log,
            statistics_.first_blocks_spread);
        next_first -= std::log(1 - uniform()) / firsts_per_ms;
      } else {
        const auto [milliseconds, earlier] = pending_.top();
        pending_.pop();
        add(milliseconds, trace_[earlier].blocks, statistics_.more_blocks_log,
            statistics_.more_blocks_spread);
      }
    }
    return std::move(trace_);
  }

 private:
  double uniform() { return static_cast<double>(random_.next() >> 11) * 0x1p-53; }
  double lognormal(double mean, double spread) {
    const double normal =
        std::sqrt(-2 * std::log(1 - uniform())) * std::cos(2 * std::numbers::pi * uniform());
    return std::exp(mean + spread * normal);
  }

  void add(int64_t milliseconds, std::vector<int64_t> blocks, double log, double spread) {
    const auto more = std::max(1.0, std::round(lognormal(log, spread)));
    for (double i = 0; i < more && std::ssize(blocks) < statistics_.max_blocks; ++i) {
      blocks.push_back(++last_block_);
    }
    const auto prompt = static_cast<int32_t>(std::ssize(blocks)) * kTraceBlock -
                        static_cast<int32_t>(random_.below(kTraceBlock));
    // In the next turn, this turn's answer fills the rest of its last block.
    if (uniform() < statistics_.continued_share && std::ssize(blocks) < statistics_.max_blocks) {
      const double pause = lognormal(statistics_.pause_log, statistics_.pause_spread);
      pending_.emplace(milliseconds + static_cast<int64_t>(pause), trace_.size());
    }
    trace_.push_back({milliseconds, prompt, statistics_.answer_tokens, std::move(blocks)});
  }

  const TraceStatistics& statistics_;
  SeededRandom random_;
  std::vector<TraceRequest> trace_;
  using Turn = std::pair<int64_t, size_t>;  // milliseconds, and index of the earlier request
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> pending_;
  int64_t last_block_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> read_trace(std::istream& lines) {
  std::vector<TraceRequest> trace;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto is_count = [&](const char* field) {
      return json.contains(field) && json[field].is_number_integer() &&
             json[field].get<int64_t>() >= 0 && json[field].get<int64_t>() <= (1 << 28);
    };
    if (!json.is_object() || !is_count("timestamp") || !is_count("input_length") ||
        !is_count("output_length") || !json.contains("hash_ids") || !json["hash_ids"].is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace, line ", number,
                       ": not an object of timestamp, input_length, output_length and hash_ids"));
    }
    TraceRequest request{json["timestamp"].get<int64_t>(),
                         json["input_length"].get<int32_t>(),
                         json["output_length"].get<int32_t>(),
                         {}};
    for (const auto& id : json["hash_ids"]) {
      if (!id.is_number_integer()) {
        return absl::InvalidArgumentError(
            absl::StrCat("trace, line ", number, ": hash_ids are whole numbers"));
      }
      request.blocks.push_back(id.get<int64_t>());
    }
    if (std::ssize(request.blocks) * kTraceBlock < request.prompt_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace, line ", number, ": ", request.blocks.size(), " hash_ids of ",
                       kTraceBlock, " tokens for ", request.prompt_tokens));
    }
    trace.push_back(std::move(request));
  }
  return trace;
}

std::vector<TraceRequest> generate_trace(const TraceStatistics& statistics, uint64_t seed) {
  return Generator(statistics, seed).run();
}

}  // namespace tessera
