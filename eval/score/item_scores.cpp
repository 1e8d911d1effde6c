#include "eval/score/item_scores.h"

#include <algorithm>
#include <numeric>

#include "kernels/check.h"

namespace tessera {

Ratio surprise(const std::vector<TrialResult>& results) {
  Ratio ratio;
  for (const TrialResult& result : results) {
    ratio.add({-log_likelihood(result), static_cast<double>(result.logprobs.size())});
  }
  return ratio;
}

Ratio divergence(const Item& item, const std::vector<TrialResult>& results, Phase phase) {
  Ratio ratio;
  for (size_t t = 0; t < results.size(); ++t) {
    const std::vector<float>& kl = results[t].kl;
    const size_t prompt = std::min(item.trials[t].prompt.size(), kl.size());
    const size_t begin = phase == Phase::decode ? prompt : 0;
    const size_t end = phase == Phase::prompt ? prompt : kl.size();
    for (size_t p = begin; p < end; ++p) {
      ratio.add({kl[p], 1});
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

bool is_right(Scoring scoring, const Item& item, const std::vector<TrialResult>& results) {
  switch (scoring) {
    case Scoring::choice:
      return likeliest_choice(item, results, false) == item.right;
    case Scoring::contains:
      return results.at(0).text.find(item.answer) != std::string::npos;
    case Scoring::exact:
      return std::all_of(results.at(0).likeliest.begin(), results.at(0).likeliest.end(),
                         [](uint8_t likeliest) { return likeliest != 0; });
    case Scoring::text:
      break;
  }
  TESSERA_CHECK(false, "a text has no right answer");
}

}  // namespace tessera
