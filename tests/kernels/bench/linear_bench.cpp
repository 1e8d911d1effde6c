// How close `linear` comes to what the machine can do, in shapes of three models. Prints a
// markdown table; arguments select rows that contain all of them ("avx512" "int8" "512 x").
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/bench/onednn.h"
#include "tests/kernels/bench/roofline.h"

namespace tessera {
namespace {

constexpr int64_t kMostResidentBytes = int64_t{256} << 20;  // well above any cache

struct Shape {
  const char* model;
  int64_t weights;  // of the whole model: what a step reads, and so what stays in which cache
  int64_t rows;
  int64_t cols;
};

constexpr Shape kShapes[] = {
    {"7M", 7'000'000, 640, 256},        {"7M", 7'000'000, 256, 640},
    {"7M", 7'000'000, 4096, 256},       {"110M", 110'000'000, 768, 768},
    {"110M", 110'000'000, 2048, 768},   {"110M", 110'000'000, 768, 2048},
    {"110M", 110'000'000, 32000, 768},  {"1B", 1'100'000'000, 2048, 2048},
    {"1B", 1'100'000'000, 5632, 2048},  {"1B", 1'100'000'000, 2048, 5632},
    {"1B", 1'100'000'000, 32000, 2048},
};

// Memory that starts with a cache line, as the server's weights and scratch do.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t size)
      : size_(static_cast<size_t>(size)), memory_(new (std::align_val_t{64}) std::byte[size_]) {
    std::memset(memory_, 1, size_);
  }
  ~AlignedBytes() { ::operator delete[](memory_, std::align_val_t{64}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::span<std::byte> span() const { return {memory_, size_}; }

 private:
  size_t size_;
  std::byte* memory_;
};

class Bench {
 public:
  explicit Bench(std::vector<std::string> filters) : filters_(std::move(filters)), pool_(0) {}

  void run() {
    std::printf(
        "| model | tokens x inputs x outputs | format | isa | us | GB/s | GFLOP/s | floor us "
        "| of floor | oneDNN us |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const Shape& shape : kShapes) {
      for (const int64_t tokens : {1, 8, 32, 512}) {
        for (const WeightFormat format :
             {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}) {
          for (const CpuIsa isa : {CpuIsa::avx512, CpuIsa::avx2}) {
            row(shape, tokens, format, isa);
          }
        }
      }
    }
  }

 private:
  void row(const Shape& shape, int64_t tokens, WeightFormat format, CpuIsa isa) {
    char label[160];
    std::snprintf(label, sizeof(label), "| %s | %ld x %ld x %ld | %s | %s |", shape.model, tokens,
                  shape.cols, shape.rows, name(format).data(), name(isa).data());
    const auto excludes = [&](const std::string& filter) {
      return std::strstr(label, filter.c_str()) == nullptr;
    };
    if (!cpu_supports(isa) || std::any_of(filters_.begin(), filters_.end(), excludes)) {
      return;
    }
    const Backend& backend = cpu_backend(isa);
    const int64_t bytes = backend.packed_weight_bytes(format, shape.rows, shape.cols);
    const int64_t model = shape.weights * bytes / (shape.rows * shape.cols);
    const int64_t resident = std::min(model, kMostResidentBytes);
    const int64_t copies = std::max<int64_t>(1, resident / bytes);
    const double taken = ours(backend, shape, tokens, format, copies);
    const auto flops = static_cast<double>(2 * tokens * shape.rows * shape.cols);
    const double floor =
        std::max(static_cast<double>(bytes) / bandwidth(copies * bytes), flops / peak(isa, format));
    std::printf("%s %.1f | %.1f | %.0f | %.1f | %.0f %% |", label, taken / 1e3,
                static_cast<double>(bytes) / taken, flops / taken, floor / 1e3,
                100 * floor / taken);
    const bool compares = isa == CpuIsa::avx512 && (tokens == 8 || tokens == 512);
    const double other =
        compares ? onednn_nanoseconds(format, tokens, shape.rows, shape.cols, copies) : 0;
    std::printf(other > 0 ? " %.1f |\n" : " |\n", other / 1e3);
    std::fflush(stdout);
  }

  double ours(const Backend& backend, const Shape& shape, int64_t tokens, WeightFormat format,
              int64_t copies) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> in(static_cast<size_t>(tokens * shape.cols));
    std::generate(in.begin(), in.end(), [&] { return normal(random); });
    std::vector<float> out(static_cast<size_t>(tokens * shape.rows));
    AlignedBytes scratch(backend.linear_scratch_bytes(tokens, shape.cols));
    const int64_t bytes = backend.packed_weight_bytes(format, shape.rows, shape.cols);
    AlignedBytes memory(bytes * copies);
    const std::vector<float> source(static_cast<size_t>(shape.rows * shape.cols), 0.25f);
    std::vector<PackedWeight> weights;
    for (int64_t copy = 0; copy < copies; ++copy) {
      weights.push_back({format, shape.rows, shape.cols, memory.span().data() + copy * bytes});
    }
    backend.pack_weight({source.data(), shape.rows, shape.cols, shape.cols}, 0, weights[0]);
    for (size_t copy = 1; copy < weights.size(); ++copy) {
      std::memcpy(weights[copy].data, weights[0].data, static_cast<size_t>(bytes));
    }
    return time_of([&](int64_t i) {
             backend.linear({.in = {in.data(), tokens, shape.cols, shape.cols},
                             .weight = &weights[static_cast<size_t>(i % copies)],
                             .bias = {},
                             .accumulate = false,
                             .out = {out.data(), tokens, shape.rows, shape.rows},
                             .scratch = scratch.span()},
                            pool_.stream());
           })
        .median;
  }

  double bandwidth(int64_t bytes) {
    double& known = bandwidths_[bytes];
    return known > 0 ? known : known = read_bandwidth(pool_, bytes);
  }
  double peak(CpuIsa isa, WeightFormat format) {
    double& known = peaks_[{isa, format}];
    return known > 0 ? known : known = peak_flops(pool_, isa, format);
  }

  std::vector<std::string> filters_;
  ThreadPool pool_;
  std::map<int64_t, double> bandwidths_;
  std::map<std::pair<CpuIsa, WeightFormat>, double> peaks_;
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Bench(std::vector<std::string>(argv + 1, argv + argc)).run();
  return 0;
}
