#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/measurement/statistics.h"
#include "eval/score/evidence.h"
#include "eval/score/verdict.h"

namespace tessera {

// Results of an evaluation, before they become a table, JSON, CSV or HTML. Vectors named after
// subjects have one entry for each, in the report's order. The first subject is the reference.

enum class Better : uint8_t { higher, lower };

struct MetricReport {
  std::string name{};  // "accuracy"
  std::string unit{};  // "%"
  Better better = Better::higher;
  int decimals = 2;                                 // digits of a printed value; -1: scientific
  std::vector<std::optional<Interval>> subjects{};  // empty: not defined for it
};

// Share of right answers, 0 to 1, by depth of the needle and length of the context.
struct GridReport {
  std::string length_title{};  // "tokens"
  std::vector<int32_t> lengths{};
  std::vector<double> depths{};
  std::vector<std::vector<double>> subjects{};  // each [depths, lengths]; -1: no item
};

// Mean KL divergence in consecutive segments of a text.
struct CourseReport {
  std::vector<double> positions{};              // tokens, the middle of each segment
  std::vector<std::vector<double>> subjects{};  // empty for the reference
};

// One item of a task with choices; log likelihoods in nats.
struct ChoiceReport {
  std::string id{};
  size_t right = 0;
  std::vector<std::vector<double>> subjects{};  // each [choices]
};

// KV memory, measured at the end of sequences: see KvUse.
struct KvReport {
  int64_t bytes = 0;
  int64_t tokens = 0;

  double bytes_per_token() const {
    return static_cast<double>(bytes) / static_cast<double>(tokens);
  }
};

struct TaskReport {
  std::string name{};
  std::string description{};
  int64_t items = 0;
  int64_t left_out = 0;
  std::vector<MetricReport> metrics{};
  std::vector<std::optional<KvReport>> kv{};           // for each subject; empty: not measurable
  std::vector<std::optional<Judgement>> judgements{};  // empty for the reference
  std::vector<Qualification> qualifications{};
  std::optional<GridReport> grid{};
  std::optional<CourseReport> course{};
  std::vector<ChoiceReport> choices{};
};

struct KeptReport {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  std::vector<double> share{};  // [layers, kv_heads], 0 to 1, of the tokens
};

struct SubjectReport {
  std::string name{};
  std::string description{};
  std::optional<KvReport> kv{};          // over all tasks
  std::optional<double> kl{};            // mean over all positions of compared tasks, nats
  std::optional<double> accuracy{};      // mean over the tasks that have one, 0 to 1
  std::optional<Judgement> judgement{};  // over all tasks; empty for the reference
  std::optional<KeptReport> kept{};      // only if it drops tokens
};

struct Report {
  std::string model{};
  std::string device{};
  std::string weights{};
  uint64_t seed = 0;
  std::string split{};  // "tuning": see eval/tasks/split.h
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads
  std::vector<SubjectReport> subjects{};
  std::vector<TaskReport> tasks{};
};

}  // namespace tessera
