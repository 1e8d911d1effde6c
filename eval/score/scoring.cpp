#include "eval/score/scoring.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "eval/score/evidence.h"
#include "eval/score/item_scores.h"
#include "eval/score/verdict.h"

namespace tessera {
namespace {

using ItemResults = std::vector<TrialResult>;

constexpr size_t kStretches = 10;  // segments of a long generation
constexpr double kTail = 0.99;

// Computes the score of each subject by a given statistic.
class Scorer {
 public:
  Scorer(const Task& task, const TaskResults& results, uint64_t seed)
      : task_(task), results_(results), seed_(seed) {}

  // numerator / denominator, each summed over items; items without a denominator do not count.
  template <class Terms>
  MetricReport ratio(MetricReport metric, Terms&& terms, double (*finish)(double) = nullptr) const {
    for (size_t s = 0; s < results_.results.size(); ++s) {
      std::vector<Ratio> items;
      for (size_t i = 0; i < task_.items.size(); ++i) {
        const Ratio item = terms(task_.items[i], results_.results[s][i], results_.results[0][i]);
        if (item.of > 0) {
          items.push_back(item);
        }
      }
      metric.subjects.push_back(interval_of(items, finish));
    }
    return metric;
  }

  MetricReport divergence_of(const char* name, Phase phase) const {
    return ratio({.name = name, .unit = "nats", .better = Better::lower, .decimals = -1},
                 [phase](const Item& item, const ItemResults& own, const ItemResults&) {
                   return divergence(item, own, phase);
                 });
  }

  // A quantile of the KL divergences of all positions.
  MetricReport kl_quantile(MetricReport metric, double q) const {
    for (const std::vector<ItemResults>& items : results_.results) {
      std::vector<const std::vector<float>*> kl;
      for (const ItemResults& item : items) {
        for (const TrialResult& trial : item) {
          if (!trial.kl.empty()) kl.push_back(&trial.kl);
        }
      }
      std::vector<double> pool;
      const auto statistic = [&](std::span<const size_t> drawn) {
        pool.clear();
        for (const size_t i : drawn) {
          pool.insert(pool.end(), kl[i]->begin(), kl[i]->end());
        }
        return quantile(pool, q);
      };
      metric.subjects.push_back(kl.empty() ? std::optional<Interval>()
                                           : bootstrap(kl.size(), statistic, seed_));
    }
    return metric;
  }

 private:
  std::optional<Interval> interval_of(const std::vector<Ratio>& items,
                                      double (*finish)(double)) const {
    if (items.empty()) {
      return std::nullopt;
    }
    return bootstrap(
        items.size(),
        [&](std::span<const size_t> drawn) {
          Ratio sum;
          for (const size_t i : drawn) {
            sum.add(items[i]);
          }
          return finish == nullptr ? sum.value() : finish(sum.value());
        },
        seed_);
  }

  const Task& task_;
  const TaskResults& results_;
  const uint64_t seed_;
};

void score_text(const Task& task, const Scorer& scorer, TaskReport& report) {
  if (!task.along) {
    report.metrics.push_back(scorer.ratio(
        {.name = "perplexity", .better = Better::lower, .decimals = 3},
        [](const Item&, const ItemResults& own, const ItemResults&) { return surprise(own); },
        [](double nats) { return std::exp(nats); }));
  }
  const auto kl = [&](const char* name, Phase phase) {
    report.metrics.push_back(scorer.divergence_of(name, phase));
  };
  kl("KL mean", Phase::all);
  if (!task.along) {
    kl("KL mean, prompt", Phase::prompt);
    kl("KL mean, decode", Phase::decode);
  }
  kl("KL mean, acted", Phase::acted);
  const MetricReport tail{.unit = "nats", .better = Better::lower, .decimals = -1};
  for (const auto& [name, q] :
       {std::pair("KL median", 0.5), std::pair("KL p99", kTail), std::pair("KL max", 1.0)}) {
    MetricReport metric = tail;
    metric.name = name;
    report.metrics.push_back(scorer.kl_quantile(std::move(metric), q));
  }
  report.metrics.push_back(
      scorer.ratio({.name = "top-1 agreement", .unit = "%", .decimals = 2},
                   [](const Item&, const ItemResults& own, const ItemResults&) {
                     return agreement(own).times(100);
                   }));
}

void score_answers(const Task& task, const Scorer& scorer, TaskReport& report) {
  const Scoring scoring = task.scoring;
  report.metrics.push_back(
      scorer.ratio({.name = "accuracy", .unit = "%", .decimals = 1},
                   [scoring](const Item& item, const ItemResults& own, const ItemResults&) {
                     return accuracy(scoring, item, own).times(100);
                   }));
  if (scoring == Scoring::choice) {
    report.metrics.push_back(scorer.ratio(
        {.name = "accuracy by byte", .unit = "%", .decimals = 1},
        [](const Item& item, const ItemResults& own, const ItemResults&) {
          return Ratio{likeliest_choice(item, own, true) == item.right ? 100.0 : 0.0, 1};
        }));
  }
  report.metrics.push_back(scorer.ratio(
      {.name = "lost", .unit = "%", .better = Better::lower, .decimals = 1},
      [scoring](const Item& item, const ItemResults& own, const ItemResults& reference) {
        if (&own == &reference) {
          return Ratio{};
        }
        return lost(answers_of(scoring, item, own), answers_of(scoring, item, reference), false)
            .times(100);
      }));
  if (scoring == Scoring::exact) {
    report.metrics.push_back(scorer.ratio(
        {.name = "surprise", .unit = "nats/token", .better = Better::lower, .decimals = 4},
        [](const Item&, const ItemResults& own, const ItemResults&) { return surprise(own); }));
  }
  const bool compares = std::any_of(task.items.begin(), task.items.end(), [](const Item& item) {
    return item.trials.front().compared() > 0;
  });
  if (compares) {
    report.metrics.push_back(scorer.divergence_of("KL mean, acted", Phase::acted));
  }
}

std::optional<GridReport> grid_of(const Task& task, const TaskResults& results) {
  GridReport grid;
  grid.length_title = task.scoring == Scoring::contains ? "pairs" : "tokens";
  const auto insert = [](auto& list, auto value) {
    const auto at = std::lower_bound(list.begin(), list.end(), value);
    if (at == list.end() || *at != value) list.insert(at, value);
  };
  for (const Item& item : task.items) {
    if (item.length == 0 || item.depth < 0) {
      return std::nullopt;
    }
    insert(grid.lengths, item.length);
    insert(grid.depths, item.depth);
  }
  for (const std::vector<ItemResults>& own : results.results) {
    std::vector<Ratio> cells(grid.lengths.size() * grid.depths.size());
    for (size_t i = 0; i < task.items.size(); ++i) {
      const Item& item = task.items[i];
      const auto row = std::find(grid.depths.begin(), grid.depths.end(), item.depth);
      const auto column = std::find(grid.lengths.begin(), grid.lengths.end(), item.length);
      const auto at = static_cast<size_t>(row - grid.depths.begin()) * grid.lengths.size() +
                      static_cast<size_t>(column - grid.lengths.begin());
      cells[at].add(accuracy(task.scoring, item, own[i]));
    }
    std::vector<double>& out = grid.subjects.emplace_back();
    for (const Ratio& cell : cells) {
      out.push_back(cell.of > 0 ? cell.value() : -1);
    }
  }
  return grid;
}

CourseReport course_of(const TaskResults& results) {
  CourseReport course;
  size_t positions = 0;
  for (const ItemResults& item : results.results[0]) {
    for (const TrialResult& trial : item) {
      positions = std::max(positions, trial.logprobs.size());
    }
  }
  const size_t stretches = std::min(kStretches, positions);
  const auto border = [&](size_t i) { return i * positions / stretches; };
  for (size_t i = 0; i < stretches; ++i) {
    course.positions.push_back(static_cast<double>(border(i) + border(i + 1)) / 2);
  }
  for (const std::vector<ItemResults>& own : results.results) {
    std::vector<Ratio> sums(stretches);
    for (const ItemResults& item : own) {
      for (const TrialResult& trial : item) {
        for (size_t i = 0; i < stretches; ++i) {
          for (size_t p = border(i); p < std::min(border(i + 1), trial.kl.size()); ++p) {
            sums[i].add({trial.kl[p], 1});
          }
        }
      }
    }
    std::vector<double>& out = course.subjects.emplace_back();
    for (const Ratio& sum : sums) {
      if (sum.of > 0) out.push_back(sum.value());
    }
  }
  return course;
}

std::optional<KvReport> kv_of(const std::vector<ItemResults>& items) {
  KvReport kv;
  for (const ItemResults& item : items) {
    for (const TrialResult& trial : item) {
      kv.bytes += trial.kv ? trial.kv->bytes : 0;
      kv.tokens += trial.kv ? trial.kv->tokens : 0;
    }
  }
  return kv.tokens > 0 ? std::optional(kv) : std::nullopt;
}

std::vector<ChoiceReport> choices_of(const Task& task, const TaskResults& results) {
  std::vector<ChoiceReport> choices;
  for (size_t i = 0; i < task.items.size(); ++i) {
    ChoiceReport choice{task.items[i].id, task.items[i].right, {}};
    for (const std::vector<ItemResults>& own : results.results) {
      std::vector<double>& likelihoods = choice.subjects.emplace_back();
      for (const TrialResult& trial : own[i]) {
        likelihoods.push_back(log_likelihood(trial));
      }
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

// ---- over all tasks

struct Sums {
  KvReport kv;
  Ratio kl;
  std::vector<double> kept;
  double kept_of = 0;

  void add(const TrialResult& trial) {
    kl.add({std::accumulate(trial.kl.begin(), trial.kl.end(), 0.0),
            static_cast<double>(trial.kl.size())});
    if (!trial.kv) {
      return;
    }
    kv.bytes += trial.kv->bytes;
    kv.tokens += trial.kv->tokens;
    kept.resize(std::max(kept.size(), trial.kv->kept.size()));
    for (size_t i = 0; i < trial.kv->kept.size(); ++i) {
      kept[i] += trial.kv->kept[i];
    }
    kept_of += trial.kv->kept.empty() ? 0 : static_cast<double>(trial.kv->tokens);
  }
};

// Judges a subject on the contexts of all tasks together. A task on which it is proven to be bad
// decides, so that other tasks cannot hide it.
Judgement judge_all(std::span<const ContextEvidence> contexts, const std::vector<TaskReport>& tasks,
                    size_t place, uint64_t seed) {
  Judgement judgement = judge(contexts, seed);
  for (const TaskReport& task : tasks) {
    const std::optional<Judgement>& own = task.judgements[place];
    if (own && own->verdict == Verdict::no) {
      judgement.verdict = Verdict::no;
      absl::StrAppend(&judgement.reason, "; no in ", task.name);
    }
  }
  return judgement;
}

}  // namespace

TaskReport score_task(const Task& task, const TaskResults& results, uint64_t seed) {
  TaskReport report{.name = task.name,
                    .description = task.description,
                    .items = static_cast<int64_t>(task.items.size()),
                    .left_out = task.left_out};
  const Scorer scorer(task, results, seed);
  if (task.scoring == Scoring::text) {
    score_text(task, scorer, report);
  } else {
    score_answers(task, scorer, report);
    report.grid = grid_of(task, results);
  }
  if (task.along) {
    report.course = course_of(results);
  }
  if (task.scoring == Scoring::choice) {
    report.choices = choices_of(task, results);
  }
  for (const std::vector<ItemResults>& own : results.results) {
    report.kv.push_back(kv_of(own));
  }
  report.qualifications = qualify(task, results);
  for (size_t s = 0; s < results.results.size(); ++s) {
    report.judgements.push_back(s == 0 ? std::nullopt
                                       : std::optional(judge(evidence_of(task, results, s), seed)));
  }
  return report;
}

void judge_subjects(std::span<const Task> tasks, std::span<const TaskResults> results,
                    const HeadCounts& heads, Report& report) {
  for (size_t s = 0; s < report.subjects.size(); ++s) {
    SubjectReport& subject = report.subjects[s];
    Sums sums;
    std::vector<ContextEvidence> contexts;
    for (size_t t = 0; t < results.size(); ++t) {
      for (const ItemResults& item : results[t].results[s]) {
        for (const TrialResult& trial : item) sums.add(trial);
      }
      if (s > 0) {
        const std::vector<ContextEvidence> own = evidence_of(tasks[t], results[t], s);
        contexts.insert(contexts.end(), own.begin(), own.end());
      }
    }
    Ratio accuracy;
    for (const TaskReport& task : report.tasks) {
      for (const MetricReport& metric : task.metrics) {
        if (metric.name == "accuracy" && metric.subjects[s]) {
          accuracy.add({metric.subjects[s]->value / 100, 1});
        }
      }
    }
    if (sums.kv.tokens > 0) subject.kv = sums.kv;
    if (sums.kl.of > 0) subject.kl = sums.kl.value();
    if (accuracy.of > 0) subject.accuracy = accuracy.value();
    if (sums.kept_of > 0) {
      subject.kept = KeptReport{heads.layers, heads.kv_heads, std::move(sums.kept)};
      for (double& share : subject.kept->share) share /= sums.kept_of;
    }
    if (s > 0) subject.judgement = judge_all(contexts, report.tasks, s, report.seed);
  }
}

}  // namespace tessera
