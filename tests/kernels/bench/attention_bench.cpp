// How close attention comes to the machine's limits. Decode: one layer after another of more keys
// and values than any cache holds, against the bandwidth of reading memory. Prefill: a chunk of 512
// tokens, against the peak of f32 multiply-adds. The shape is that of an 8B model.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kv_arena.h"
#include "tests/kernels/bench/roofline.h"

namespace tessera {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kModelLayers = 32;
constexpr int64_t kBeyondCaches = int64_t{600} << 20;

struct Case {
  KvFormat format;
  int32_t sequences;
  int32_t count;    // query rows of each sequence
  int32_t context;  // tokens before them
  int32_t group = 4;
  int32_t page_tokens = 64;
};

class AttentionBench {
 public:
  AttentionBench(const Case& shape, int32_t layers) : case_(shape), layers_(layers) {
    const int32_t length = shape.context + shape.count;
    KvArenaShape arena{.layout = KvPageLayout::make(shape.format, kHeadDim, shape.page_tokens),
                       .slots = shape.sequences,
                       .layers = layers,
                       .kv_heads = kKvHeads,
                       .context = length};
    arena.pages = arena.slots * layers * kKvHeads * arena.row_pages();
    arena_ = KvArena::make(arena);
    std::vector<KvRowResize> changes;
    for (int32_t i = 0; i < shape.sequences; ++i) {
      changes.push_back({i, 0, arena.row_pages()});
      spans_.push_back({i, i * shape.count, shape.count, shape.context});
    }
    ThreadPool pool(1);
    cpu_backend(CpuIsa::scalar).kv_resize({arena_->pool(), changes}, pool.stream());
    fill();
    const int64_t floats = int64_t{shape.sequences} * shape.count * cols();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    queries_.resize(static_cast<size_t>(floats));
    std::generate(queries_.begin(), queries_.end(), [&] { return normal(random); });
    out_.resize(queries_.size());
  }

  AttentionArgs args(const Backend& backend, int64_t step) {
    const int64_t rows = int64_t{case_.sequences} * case_.count;
    const StepLimits limits{static_cast<int32_t>(rows), case_.sequences, arena_->shape().context};
    scratch_.resize(static_cast<size_t>(
        backend.attention_scratch_bytes(limits, kKvHeads * case_.group, kHeadDim)));
    return {.queries = {queries_.data(), rows, cols(), cols()},
            .sequences = spans_,
            .pages = arena_->view(),
            .layer = static_cast<int32_t>(step % layers_),
            .query_heads = kKvHeads * case_.group,
            .scale = 0.088f,
            .out = {out_.data(), rows, cols(), cols()},
            .scratch = scratch_};
  }

  Nanoseconds time(const Backend& backend, ThreadPool& pool) {
    return time_of([&](int64_t i) { backend.attention(args(backend, i), pool.stream()); });
  }

 private:
  int64_t cols() const { return int64_t{kKvHeads} * case_.group * kHeadDim; }

  // One random page, copied: what the numbers are does not matter, only that they are usual ones.
  void fill() {
    const KvPagesView view = arena_->view();
    const int64_t page_bytes = view.layout.page_bytes;
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (int64_t at = 0; at < page_bytes; at += view.layout.key_bytes()) {
      const float x = normal(random);
      const f16 half = to_f16(x);
      if (view.layout.format.key_bits == 16) {
        std::memcpy(view.arena + at, &half, sizeof(half));
      } else {
        std::memcpy(view.arena + at, &x, sizeof(x));
      }
    }
    for (int32_t page = 1; page < arena_->shape().pages; ++page) {
      std::memcpy(view.page(page), view.arena, static_cast<size_t>(page_bytes));
    }
  }

  Case case_;
  int32_t layers_;
  std::unique_ptr<KvArena> arena_;
  std::vector<SequenceSpan> spans_;
  std::vector<float> queries_;
  std::vector<float> out_;
  std::vector<std::byte> scratch_;
};

const char* name_of(KvFormat format) {
  return format == kKvF16 ? "f16" : "f32";
}

void decode(const Case& shape, ThreadPool& pool, bool with_scalar = false) {
  const int64_t layer_bytes = int64_t{shape.sequences} * (shape.context + 1) * kKvHeads * kHeadDim *
                              (shape.format.key_bits + shape.format.value_bits) / 8;
  const int32_t layers =
      static_cast<int32_t>(std::max<int64_t>(2, div_ceil(kBeyondCaches, layer_bytes)));
  AttentionBench bench(shape, layers);
  for (const CpuIsa isa : {CpuIsa::avx512, CpuIsa::avx2, CpuIsa::scalar}) {
    if (!cpu_supports(isa) || (isa == CpuIsa::scalar && !with_scalar)) {
      continue;
    }
    // A shared machine's memory is not equally fast all the time: measured beside each row.
    const double reading = read_bandwidth(pool, kBeyondCaches);
    const Nanoseconds time = bench.time(cpu_backend(isa), pool);
    const double bytes = static_cast<double>(bench.args(cpu_backend(isa), 0).bytes());
    std::printf("| decode | %s | %s | %d | %d | %d | %d | %.2f | %.1f | %.1f | %.0f %% | %.0f |\n",
                std::string(name(isa)).c_str(), name_of(shape.format), shape.sequences,
                shape.context, shape.group, shape.page_tokens, time.median * kModelLayers * 1e-6,
                bytes / time.median, reading, 100 * bytes / time.median / reading,
                static_cast<double>(bench.args(cpu_backend(isa), 0).flops()) / time.median);
  }
}

void prefill(const Case& shape, ThreadPool& pool) {
  AttentionBench bench(shape, 1);
  for (const CpuIsa isa : {CpuIsa::avx512, CpuIsa::avx2}) {
    if (!cpu_supports(isa)) {
      continue;
    }
    const Nanoseconds time = bench.time(cpu_backend(isa), pool);
    const double flops = static_cast<double>(bench.args(cpu_backend(isa), 0).flops());
    const double peak = peak_flops(pool, isa, WeightFormat::f32);
    std::printf("| prefill | %s | %s | %d x %d | %d | %d | %.2f | %.0f | %.0f | %.0f %% |\n",
                std::string(name(isa)).c_str(), name_of(shape.format), shape.sequences, shape.count,
                shape.context, shape.group, time.median * kModelLayers * 1e-6, flops / time.median,
                peak, 100 * flops / time.median / peak);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  pool.pin_caller();
  std::printf("%d threads, %d KV heads, head_dim %d\n\n", pool.threads(), kKvHeads, kHeadDim);
  std::printf(
      "| | ISA | KV | batch | context | GQA | page | ms a step of 32 layers | GB/s | reading | of "
      "it | "
      "GFLOP/s |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const KvFormat format : {kKvF16, kKvF32}) {
    decode({format, 1, 1, 8191}, pool, true);
    decode({format, 8, 1, 8191}, pool);
  }
  decode({kKvF16, 1, 1, 8191, 1}, pool);
  decode({kKvF16, 1, 1, 8191, 8}, pool);
  decode({kKvF16, 32, 1, 511}, pool);
  decode({.format = kKvF16, .sequences = 1, .count = 1, .context = 8191, .page_tokens = 16}, pool);
  std::printf(
      "\n| | ISA | KV | rows | context | GQA | ms for 32 layers | GFLOP/s | FMA peak | of peak "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const KvFormat format : {kKvF16, kKvF32}) {
    for (const int32_t context : {0, 512, 2048}) {
      prefill({format, 1, 512, context}, pool);
    }
  }
  return 0;
}
