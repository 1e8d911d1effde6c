#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/tasks/trial.h"

namespace tessera {

// Rule that turns the results of an item into a score.
enum class Scoring : uint8_t {
  text,      // compared trials: perplexity, KL divergence and top-1 agreement
  exact,     // every forced token is the likeliest: greedy decoding would have written the answer
  contains,  // the generated text contains the answer
  calls,     // the generated text has the calls of the answer, and no others (score/calls.h)
  choice,    // the right continuation is the likeliest of several
};

// One question: one trial, or one for each choice.
struct Item {
  std::string id{};
  std::vector<Trial> trials{};
  int32_t length = 0;                  // column of the depth x length grid, tokens; 0: none
  double depth = -1;                   // row of the grid, 0 (begin) to 1 (end); -1: none
  std::string answer{};                // for `contains`; for `calls`, a text with them
  size_t right = 0;                    // for `choice`: index of the right trial
  std::vector<std::string> choices{};  // for `choice`, as given
};

struct Task {
  std::string name{};         // name in --tasks
  std::string description{};  // one sentence for the report
  Scoring scoring = Scoring::exact;
  bool along = false;  // show KL along the positions (long generation)
  std::vector<Item> items{};
  int32_t left_out = 0;  // items that do not fit into the context
};

}  // namespace tessera
