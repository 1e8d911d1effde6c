// Measures a whole decode step of a model over sequences that share a prefix. Compares one read of
// the shared pages for all sequences with a separate read for each. Logits must be bit-identical.
// With one thread, CPU time is measured, so that other load on the machine has little effect.
//   decode_step_bench MODEL|SHAPE [sequences] [shared tokens] [own tokens] [threads] [weights]
// A shape is one of tessera-bench's shapes; its weights are random. `tiny` is the shipped model's.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/shape.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads/thread_pool.h"
#include "kernels/kv/kv_arena.h"
#include "models/transformer.h"
#include "models/weights/random_checkpoint.h"

namespace tessera {
namespace {

constexpr int32_t kChunk = 512;
constexpr int kRounds = 15;

struct Sizes {
  int32_t sequences = 32;
  int32_t shared = 2048;
  int32_t own = 60;
};

double now(bool of_thread) {
  timespec time{};
  clock_gettime(of_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

class Decode {
 public:
  Decode(Transformer& model, KvFormat format, const Sizes& sizes, const Backend& backend,
         Stream stream)
      : model_(model), sizes_(sizes), backend_(backend), stream_(stream), random_(1) {
    const ModelConfig& config = model.config();
    KvArenaShape shape{
        .formats = {format},
        .head_dim = config.head_dim,
        .page_bytes = KvPageLayout::make(format, config.head_dim, kKvGroup).page_bytes,
        .slots = sizes.sequences,
        .layers = config.layers,
        .kv_heads = config.kv_heads,
        .context = sizes.shared + sizes.own + 1};
    shape.pages = static_cast<int32_t>(shape.rows() * shape.row_pages());
    arena_ = KvArena::make(shape);
    TESSERA_CHECK(arena_ != nullptr, "no memory for pages");
    append(0, 0, sizes.shared);
    for (int32_t slot = 1; slot < sizes.sequences; ++slot) {
      const KvFork fork{0, slot, {}, sizes.shared};
      backend_.kv_fork({.pool = arena_->pool(), .forks = {&fork, 1}}, stream_);
    }
    for (int32_t slot = 0; slot < sizes.sequences; ++slot) {
      append(slot, sizes.shared, sizes.own);
      spans_.push_back({slot, slot, 1, sizes.shared + sizes.own, {}});
      rows_.push_back(slot);
      tokens_.push_back(token());
      positions_.push_back(sizes.shared + sizes.own);
    }
  }

  // Runs the same step again; the open group has room for it. Returns: milliseconds.
  double step(bool share_reads, std::vector<float>& logits) {
    const int64_t vocab = model_.config().vocab;
    logits.resize(rows_.size() * static_cast<size_t>(vocab));
    const bool of_thread = ThreadPool::of(stream_).threads() == 1;
    const double begin = now(of_thread);
    model_.forward({.tokens = tokens_,
                    .positions = positions_,
                    .sequences = spans_,
                    .share_reads = share_reads},
                   arena_->view(), stream_);
    model_.logits(rows_, {logits.data(), std::ssize(rows_), vocab, vocab}, stream_);
    return now(of_thread) - begin;
  }

 private:
  int32_t token() {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(model_.config().vocab));
  }

  void append(int32_t slot, int32_t context, int32_t count) {
    for (int32_t first = context; first < context + count; first += kChunk) {
      const int32_t part = std::min(kChunk, context + count - first);
      const KvGrowth growth{slot, {}, ((first + part) / kKvGroup - first / kKvGroup) * kKvGroup};
      backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = {&growth, 1}}, stream_);
      std::vector<int32_t> tokens;
      std::vector<int32_t> positions;
      for (int32_t i = 0; i < part; ++i) {
        tokens.push_back(token());
        positions.push_back(first + i);
      }
      const std::vector<SequenceSpan> spans{{slot, 0, part, first, {}}};
      model_.forward({.tokens = tokens, .positions = positions, .sequences = spans}, arena_->view(),
                     stream_);
    }
  }

  Transformer& model_;
  Sizes sizes_;
  const Backend& backend_;
  Stream stream_;
  std::mt19937 random_;
  std::unique_ptr<KvArena> arena_;
  std::vector<SequenceSpan> spans_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> rows_;
};

double median(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void compare(const char* name, Decode& decode) {
  std::vector<float> logits[2];
  std::vector<double> times[2];
  for (int round = 0; round < kRounds; ++round) {
    for (const bool share_reads : {false, true}) {
      times[share_reads].push_back(decode.step(share_reads, logits[share_reads]));
    }
  }
  const double alone = median(times[0]);
  const double shared = median(times[1]);
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", name, alone, shared,
              alone / shared, times[0][0], times[1][0], times[0][0] / times[1][0],
              logits[0] == logits[1] ? "same" : "DIFFERENT");
}

// A temporary directory with random weights of a shape. Removed with this object.
class RandomModel {
 public:
  RandomModel(const bench::Shape& shape, int32_t context)
      : path_(std::filesystem::temp_directory_path() /
              ("decode_step_bench." + std::string(shape.name))) {
    ModelConfig config;
    config.architecture = "LlamaForCausalLM";
    config.vocab = shape.vocab;
    config.hidden = shape.hidden;
    config.layers = shape.layers;
    config.heads = shape.query_heads;
    config.kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.ffn = shape.ffn;
    config.context = context;
    const absl::Status written = write_random_checkpoint(path_, config, 1, TensorType::bf16);
    TESSERA_CHECK(written.ok(), "no place for a model");
  }
  ~RandomModel() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Options {
  std::string model;
  Sizes sizes;
  int threads = 0;
  WeightFormat weights = WeightFormat::bf16;
};

int measure(const std::filesystem::path& directory, const Options& options) {
  const Sizes& sizes = options.sizes;
  ThreadPool pool(options.threads);
  pool.pin_caller();
  const Backend& backend = cpu_backend(best_cpu_isa());
  auto model = Transformer::load(directory,
                                 {.weights = options.weights,
                                  .limits = {kChunk, sizes.sequences, sizes.shared + sizes.own + 1},
                                  .max_logits_rows = sizes.sequences},
                                 backend, pool.stream());
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  std::printf(
      "| KV | ms a step, each alone | read once | times | least, alone | once | times | logits |\n"
      "|---|--:|--:|--:|--:|--:|--:|---|\n");
  const std::pair<const char*, KvFormat> formats[] = {
      {"f16", kKvF16}, {"k8v8", kKvK8V8}, {"k8v4", kKvK8V4}, {"k4v2", kKvK4V2}};
  for (const auto& [kv_name, kv_format] : formats) {
    Decode decode(**model, kv_format, sizes, backend, pool.stream());
    compare(kv_name, decode);
  }
  return 0;
}

int run(int argc, char** argv) {
  const auto number = [&](int i, int32_t otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const Sizes sizes{number(2, 32), number(3, 2048) / kKvGroup * kKvGroup, number(4, 60)};
  if (argc < 2 || (sizes.shared + sizes.own) % kKvGroup == kKvGroup - 1) {
    std::fprintf(stderr,
                 "a model or shape; tokens that leave room for one in the last group of 64\n");
    return 1;
  }
  const std::string weights = argc > 6 ? argv[6] : "bf16";
  const auto* format = std::find_if(std::begin(kWeightFormats), std::end(kWeightFormats),
                                    [&](WeightFormat known) { return name(known) == weights; });
  if (format == std::end(kWeightFormats)) {
    std::fprintf(stderr, "no weights are called %s\n", weights.c_str());
    return 1;
  }
  const Options options{argv[1], sizes, number(5, 0), *format};
  for (const bench::Shape& shape : bench::all_shapes()) {
    if (shape.name == options.model) {
      const RandomModel random(shape, sizes.shared + sizes.own + 1);
      return measure(random.path(), options);
    }
  }
  return measure(options.model, options);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run(argc, argv);
}
