#pragma once

namespace tessera {

// The loss of a row (a layer's KV head) that keeps the newest tokens only, compared with the other
// rows of the model.
struct HeadProfile {
  float place = 0;  // [0, 1): share of the model's rows that lose more
};

}  // namespace tessera
