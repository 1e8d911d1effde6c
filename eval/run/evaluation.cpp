#include "eval/run/evaluation.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr size_t kItemsAtOnce = 32;  // the journal is written after each such batch

using ItemResults = std::vector<TrialResult>;

// Number of distributions of an item that are compared.
int64_t compared(const Item& item) {
  int64_t compared = 0;
  for (const Trial& trial : item.trials) {
    compared += static_cast<int64_t>(trial.compared());
  }
  return compared;
}

int64_t tokens_of(const Item& item) {
  int64_t tokens = 0;
  for (const Trial& trial : item.trials) {
    tokens += static_cast<int64_t>(trial.tokens());
  }
  return tokens;
}

// Runs a few items on all subjects, so that few of the reference's logits are in memory at a time.
class ItemGroup {
 public:
  ItemGroup(const Task& task, const EvaluationOptions& options, Journal& journal)
      : task_(task), options_(options), journal_(journal) {}

  void add(size_t item, bool measure) { entries_.push_back({item, measure, {}, {}}); }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  absl::Status run(const std::vector<std::unique_ptr<Subject>>& subjects, TaskResults& out) {
    bool missing_others = false;
    for (size_t s = 1; s < subjects.size(); ++s) {
      missing_others = missing_others || missing(*subjects[s]);
    }
    for (size_t s = 0; s < subjects.size(); ++s) {
      // The reference must run again for the logits that the others are compared with.
      const bool again = s == 0 && missing_others && subjects[0]->gives_logits();
      TESSERA_RETURN_IF_ERROR(run(*subjects[s], s, again, out));
    }
    return absl::OkStatus();
  }

 private:
  struct Entry {
    size_t item = 0;
    bool measure = false;
    std::vector<Trial> forced;               // trials along the reference's output
    std::vector<std::vector<float>> logits;  // the reference's, for each trial
  };

  const Item& item_of(const Entry& entry) const { return task_.items[entry.item]; }

  bool missing(const Subject& subject) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return journal_.find(task_.name, subject.name(), item_of(entry)) == nullptr;
    });
  }

  absl::Status run(Subject& subject, size_t place, bool again, TaskResults& out) {
    std::vector<Job> jobs;
    std::vector<Entry*> computed;
    int64_t tokens = 0;
    for (Entry& entry : entries_) {
      ItemResults& results = out.results[place][entry.item];
      const ItemResults* const known = journal_.find(task_.name, subject.name(), item_of(entry));
      if (known != nullptr && !(again && compared(item_of(entry)) > 0)) {
        results = *known;
        tokens += tokens_of(item_of(entry));
        continue;
      }
      results.assign(item_of(entry).trials.size(), {});
      computed.push_back(&entry);
      add_jobs(entry, place == 0, results, jobs);
    }
    options_.on_progress(task_.name, subject.name(), tokens);
    TESSERA_RETURN_IF_ERROR(run_jobs(subject, jobs));
    for (Entry* const entry : computed) {
      const ItemResults& results = out.results[place][entry->item];
      if (journal_.find(task_.name, subject.name(), item_of(*entry)) == nullptr) {
        TESSERA_RETURN_IF_ERROR(journal_.add(task_.name, subject.name(), item_of(*entry), results));
      }
      if (place == 0) {
        follow(*entry, results);
      }
    }
    return absl::OkStatus();
  }

  absl::Status run_jobs(Subject& subject, const std::vector<Job>& jobs) {
    if (jobs.empty()) {
      return absl::OkStatus();
    }
    int64_t all = 0;
    for (const Job& job : jobs) {
      all += static_cast<int64_t>(job.trial->tokens());
    }
    int64_t told = 0;
    int64_t done = 0;
    const auto count = static_cast<int64_t>(jobs.size());
    return subject.run(jobs, [&] {  // jobs end in any order; each counts as an equal share
      const int64_t now = all * ++done / count;
      options_.on_progress(task_.name, subject.name(), now - told);
      told = now;
    });
  }

  void add_jobs(Entry& entry, bool reference, ItemResults& results, std::vector<Job>& jobs) {
    const Item& item = item_of(entry);
    if (reference) {
      entry.logits.resize(item.trials.size());
    }
    for (size_t t = 0; t < item.trials.size(); ++t) {
      Job& job = jobs.emplace_back();
      job.trial = reference || entry.forced.empty() ? &item.trials[t] : &entry.forced[t];
      job.result = &results[t];
      job.measure_kv = entry.measure && t == 0;
      if (item.trials[t].compared() > 0 && reference) {
        job.keep_logits = &entry.logits[t];
      } else if (item.trials[t].compared() > 0) {
        job.reference = entry.logits[t];
      }
    }
  }

  // Forces the reference's generated tokens on the other subjects.
  void follow(Entry& entry, const ItemResults& results) const {
    entry.forced = item_of(entry).trials;
    for (size_t t = 0; t < entry.forced.size(); ++t) {
      if (entry.forced[t].compare && entry.forced[t].generate > 0) {
        entry.forced[t].forced = results[t].generated;
        entry.forced[t].generate = 0;
      }
    }
  }

  const Task& task_;
  const EvaluationOptions& options_;
  Journal& journal_;
  std::vector<Entry> entries_;
};

}  // namespace

size_t longest_trial(std::span<const Task> tasks) {
  size_t longest = 0;
  for (const Task& task : tasks) {
    for (const Item& item : task.items) {
      for (const Trial& trial : item.trials) {
        longest = std::max({longest, trial.tokens(), trial.prompt.size() + 2});
      }
    }
  }
  return longest;
}

int64_t tokens_to_run(const Task& task, size_t subjects) {
  int64_t tokens = 0;
  for (const Item& item : task.items) {
    tokens += tokens_of(item);
  }
  return tokens * static_cast<int64_t>(subjects);
}

absl::StatusOr<TaskResults> evaluate(const Task& task,
                                     const std::vector<std::unique_ptr<Subject>>& subjects,
                                     const EvaluationOptions& options, Journal& journal) {
  TaskResults out;
  out.results.assign(subjects.size(), std::vector<ItemResults>(task.items.size()));
  for (size_t i = 0; i < task.items.size();) {
    ItemGroup group(task, options, journal);
    int64_t bytes = 0;
    for (; i < task.items.size() && group.size() < kItemsAtOnce; ++i) {
      const Item& item = task.items[i];
      const int64_t logits = compared(item) * options.vocab * static_cast<int64_t>(sizeof(float));
      if (!group.empty() && bytes + logits > options.logits_bytes) {
        break;
      }
      bytes += logits;
      group.add(i, !task.along);  // a long generation's prompt is too short to measure pages
    }
    TESSERA_RETURN_IF_ERROR(group.run(subjects, out));
  }
  return out;
}

}  // namespace tessera
