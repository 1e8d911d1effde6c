// How long kv_store takes: a prompt chunk of 512 tokens, and decodes, of one layer with 8 KV heads
// of 128, on one thread.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_arena.h"

namespace tessera {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kCols = kKvHeads * kHeadDim;
constexpr int32_t kTokens = 512;

// Microseconds, the median of many.
double measure(CpuIsa isa, KvFormat format, int32_t sequences, int32_t count) {
  ThreadPool pool(1);
  const Backend& backend = cpu_backend(isa);
  KvArenaShape shape{.formats = {format},
                     .head_dim = kHeadDim,
                     .page_bytes = KvPageLayout::make(format, kHeadDim, kKvGroup).page_bytes,
                     .slots = sequences,
                     .layers = 1,
                     .kv_heads = kKvHeads,
                     .context = kTokens};
  shape.pages = static_cast<int32_t>(shape.rows() * shape.row_pages());
  const auto arena = KvArena::make(shape);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<size_t>(sequences * count * kCols));
  std::generate(keys.begin(), keys.end(), [&] { return normal(random); });
  std::vector<SequenceSpan> spans;
  std::vector<int32_t> released;
  std::vector<KvGrowth> grown;
  for (int32_t slot = 0; slot < sequences; ++slot) {
    spans.push_back({slot, slot * count, count, 0, {}});
    released.push_back(slot);
    grown.push_back({slot, {}, kTokens});
  }
  const StepLimits limits{sequences * count, sequences, kTokens};
  std::vector<std::byte> dense(
      static_cast<size_t>(max_dense_groups(limits) * kKvHeads * shape.window_layout().page_bytes));
  const MatrixView<const float> view{keys.data(), sequences * count, kCols, kCols};
  std::vector<double> times;
  for (int32_t run = 0; run < 60; ++run) {
    backend.kv_resize({arena->pool(), released, grown}, pool.stream());
    const auto begin = std::chrono::steady_clock::now();
    backend.kv_store({view, view, spans, arena->view(), 0, dense}, pool.stream());
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + 30, times.end());
  return times[30];
}

}  // namespace
}  // namespace tessera

int main() {
  using namespace tessera;
  std::printf("%-8s %-6s %22s %22s\n", "isa", "format", "prefill of 512, us", "64 decodes, us");
  for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
    if (!cpu_supports(isa)) {
      continue;
    }
    for (const KvFormat format : {kKvF16, kKvK8V8, kKvK8V4, kKvK4V2}) {
      std::printf("%-8s k%dv%-4d %20.0f %20.0f\n", name(isa).data(), format.key_bits,
                  format.value_bits, measure(isa, format, 1, kTokens), measure(isa, format, 64, 1));
    }
  }
}
