#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::lab {

// Levels at unequal distances, ascending.
using Levels = std::vector<double>;

struct Weighted {
  double number = 0;
  double weight = 0;
};

// Finds 2^bits levels with a small weighted square error to the numbers by k-means, from levels
// between equal weights.
// Requires: there are numbers of positive weight.
Levels weighted_levels(std::vector<Weighted> numbers, int bits);

// Returns: the nearest level.
double nearest(const Levels& levels, double number);

// Moves and stretches levels, so that rounded numbers have the mean and the deviation of the
// numbers.
void keep_mean_and_deviation(const std::vector<Weighted>& numbers, Levels& levels);

}  // namespace tessera::lab
