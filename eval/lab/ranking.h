#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::lab {

// Returns: the indices of the `count` largest scores, ascending. Of equal scores the earlier ones
// count as larger. All, if there are no more.
std::vector<int32_t> largest(std::span<const float> scores, int32_t count);

// Returns: the mean over each score and its neighbours, `width` in all; beyond the ends are zeros,
// which count, as in the average pooling of PyTorch.
std::vector<float> mean_pool(std::span<const float> scores, int32_t width);

// Returns: the largest of each score and its neighbours.
std::vector<float> max_pool(std::span<const float> scores, int32_t width);

}  // namespace tessera::lab
