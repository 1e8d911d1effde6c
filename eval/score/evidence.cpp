#include "eval/score/evidence.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "eval/score/item_scores.h"

namespace tessera {
namespace {

bool has_short_context(const Item& item) {
  return std::all_of(item.trials.begin(), item.trials.end(),
                     [](const Trial& trial) { return trial.prompt.size() < kAnswersDecideBelow; });
}

}  // namespace

std::vector<Qualification> qualify(const Task& task, const TaskResults& results) {
  if (task.scoring == Scoring::text) {
    return {};
  }
  std::map<int32_t, Ratio> shares;
  std::map<int32_t, bool> short_contexts;
  for (size_t i = 0; i < task.items.size(); ++i) {
    const Item& item = task.items[i];
    shares[item.length].add(accuracy(task.scoring, item, results.results[0][i]));
    short_contexts.try_emplace(item.length, true).first->second &= has_short_context(item);
  }
  std::vector<Qualification> qualifications;
  for (const auto& [length, share] : shares) {
    qualifications.push_back(
        {length, share.value(), share.value() >= kQualifyingShare && short_contexts[length]});
  }
  return qualifications;
}

std::vector<ContextEvidence> evidence_of(const Task& task, const TaskResults& results,
                                         size_t subject) {
  TESSERA_CHECK(subject > 0, "the reference is not judged");
  const std::vector<Qualification> qualifications = qualify(task, results);
  const auto counts = [&](const Item& item) {
    return std::any_of(qualifications.begin(), qualifications.end(),
                       [&](const Qualification& q) { return q.length == item.length && q.counts; });
  };
  std::vector<ContextEvidence> contexts;
  for (size_t i = 0; i < task.items.size(); ++i) {
    const Item& item = task.items[i];
    const auto& own = results.results[subject][i];
    ContextEvidence& context = contexts.emplace_back();
    context.kl = divergence(item, own, Phase::acted);
    if (counts(item)) {
      context.lost = lost(answers_of(task.scoring, item, own),
                          answers_of(task.scoring, item, results.results[0][i]), true);
    }
  }
  return contexts;
}

}  // namespace tessera
