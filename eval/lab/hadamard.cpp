#include "eval/lab/hadamard.h"

#include <cmath>
#include <cstddef>
#include <vector>

namespace tessera::lab {
namespace {

// In f64, so that what rounds to levels behind it does not depend on the order of the sums.
void transform_block(std::span<float> block) {
  std::vector<double> sums(block.begin(), block.end());
  for (size_t half = 1; half < sums.size(); half *= 2) {
    for (size_t first = 0; first < sums.size(); first += 2 * half) {
      for (size_t i = first; i < first + half; ++i) {
        const double sum = sums[i] + sums[i + half];
        sums[i + half] = sums[i] - sums[i + half];
        sums[i] = sum;
      }
    }
  }
  const double scale = 1 / std::sqrt(static_cast<double>(sums.size()));
  for (size_t i = 0; i < sums.size(); ++i) block[i] = static_cast<float>(sums[i] * scale);
}

}  // namespace

void hadamard(std::span<float> elements) {
  const size_t block = elements.size() & (~elements.size() + 1);
  for (size_t first = 0; first < elements.size(); first += block) {
    transform_block(elements.subspan(first, block));
  }
}

}  // namespace tessera::lab
