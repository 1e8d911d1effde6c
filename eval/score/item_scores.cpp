#include "eval/score/item_scores.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "eval/tasks/calls.h"

namespace tessera {

Ratio surprise(const std::vector<TrialResult>& results) {
  Ratio ratio;
  for (const TrialResult& result : results) {
    ratio.add({-log_likelihood(result), static_cast<double>(result.logprobs.size())});
  }
  return ratio;
}

namespace {

bool counts(Phase phase, size_t position, size_t prompt, std::optional<int32_t> acted_from) {
  switch (phase) {
    case Phase::all:
      return true;
    case Phase::prompt:
      return position < prompt;
    case Phase::decode:
      return position >= prompt;
    case Phase::acted:
      return acted_from && position >= std::max(prompt, static_cast<size_t>(*acted_from));
  }
  return false;
}

bool is_right(Scoring scoring, const Item& item, const std::vector<TrialResult>& results) {
  switch (scoring) {
    case Scoring::choice:
      return likeliest_choice(item, results, false) == item.right;
    case Scoring::contains:
      return results.at(0).text.find(item.answer) != std::string::npos;
    case Scoring::calls:
      return have_same_calls(results.at(0).text, item.answer);
    case Scoring::exact:
      return std::all_of(results.at(0).likeliest.begin(), results.at(0).likeliest.end(),
                         [](uint8_t likeliest) { return likeliest != 0; });
    case Scoring::text:
      break;
  }
  TESSERA_CHECK(false, "a text has no right answer");
}

// The last query that chooses a token of an answer is at the position before the answer's end.
bool reads_acted(const TrialResult& result, size_t end) {
  return result.acted_from && static_cast<size_t>(*result.acted_from) + 1 < end;
}

void add_turns(const Trial& trial, const TrialResult& result, std::vector<Answer>& answers) {
  size_t end = trial.prompt.size();
  auto likeliest = result.likeliest.begin();
  for (const Turn& turn : trial.turns) {
    end += static_cast<size_t>(turn.asked + turn.answered);
    const auto next = likeliest + turn.answered;
    answers.push_back(
        {std::all_of(likeliest, next, [](uint8_t l) { return l != 0; }), reads_acted(result, end)});
    likeliest = next;
  }
}

}  // namespace

Ratio divergence(const Item& item, const std::vector<TrialResult>& results, Phase phase) {
  Ratio ratio;
  for (size_t t = 0; t < results.size(); ++t) {
    const std::vector<float>& kl = results[t].kl;
    const Trial& trial = item.trials[t];
    for (size_t entry = 0; entry < kl.size(); ++entry) {
      if (counts(phase, trial.position(entry), trial.prompt.size(), results[t].acted_from)) {
        ratio.add({kl[entry], 1});
      }
    }
  }
  return ratio;
}

Ratio agreement(const std::vector<TrialResult>& results) {
  Ratio ratio;
  for (const TrialResult& result : results) {
    for (const uint8_t agrees : result.agrees) {
      ratio.add({static_cast<double>(agrees), 1});
    }
  }
  return ratio;
}

double log_likelihood(const TrialResult& result) {
  return std::accumulate(result.logprobs.begin(), result.logprobs.end(), 0.0);
}

size_t likeliest_choice(const Item& item, const std::vector<TrialResult>& results, bool per_byte) {
  std::vector<double> scores;
  for (size_t t = 0; t < results.size(); ++t) {
    const double bytes = static_cast<double>(std::max<size_t>(item.choices[t].size(), 1));
    scores.push_back(log_likelihood(results[t]) / (per_byte ? bytes : 1));
  }
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

std::vector<Answer> answers_of(Scoring scoring, const Item& item,
                               const std::vector<TrialResult>& results) {
  std::vector<Answer> answers;
  for (size_t t = 0; t < results.size(); ++t) {
    add_turns(item.trials[t], results[t], answers);
  }
  if (answers.empty()) {
    const auto end = [&](size_t t) {
      const size_t generated = results[t].generated.size();
      return generated > 0 ? item.trials[t].prompt.size() + generated : item.trials[t].tokens();
    };
    bool acted = false;
    for (size_t t = 0; t < results.size(); ++t) {
      acted = acted || reads_acted(results[t], end(t));
    }
    answers.push_back({is_right(scoring, item, results), acted});
  }
  return answers;
}

Ratio accuracy(Scoring scoring, const Item& item, const std::vector<TrialResult>& results) {
  Ratio ratio;
  for (const Answer& answer : answers_of(scoring, item, results)) {
    ratio.add({answer.right ? 1.0 : 0.0, 1});
  }
  return ratio;
}

Ratio lost(const std::vector<Answer>& own, const std::vector<Answer>& reference, bool acted_alone) {
  TESSERA_CHECK(own.size() == reference.size(), "answers to the same questions");
  Ratio ratio;
  for (size_t i = 0; i < own.size(); ++i) {
    if (reference[i].right && (own[i].acted || !acted_alone)) {
      ratio.add({own[i].right ? 0.0 : 1.0, 1});
    }
  }
  return ratio;
}

}  // namespace tessera
