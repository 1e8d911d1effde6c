#include "tests/eval/one_bit_backend.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace tessera {
namespace {

void round_to_one_bit(std::span<float> values) {
  float sum = 0;
  for (const float value : values) {
    sum += std::abs(value);
  }
  const float mean = sum / static_cast<float>(values.size());
  for (float& value : values) {
    value = std::copysign(mean, value);
  }
}

void store_one_bit(const KvStoreArgs& args, Stream stream) {
  std::vector<float> rounded;
  for (int64_t token = 0; token < args.values.rows; ++token) {
    const std::span<const float> row = args.values.row(token);
    rounded.insert(rounded.end(), row.begin(), row.end());
  }
  const auto head_dim = static_cast<size_t>(args.pages.head_dim);
  for (size_t at = 0; at < rounded.size(); at += head_dim) {
    round_to_one_bit(std::span(rounded).subspan(at, head_dim));
  }
  KvStoreArgs broken = args;
  broken.values = {rounded.data(), args.values.rows, args.values.cols, args.values.cols};
  cpu_backend(best_cpu_isa()).kv_store(broken, stream);
}

}  // namespace

const Backend& one_bit_backend() {
  static const Backend backend = [] {
    Backend table = cpu_backend(best_cpu_isa());
    table.kv_store = store_one_bit;
    return table;
  }();
  return backend;
}

}  // namespace tessera
