#include "tests/models/model_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "base/check.h"
#include "models/checkpoint/read_model_config.h"

namespace tessera {

ModelRunner::ModelRunner(const std::filesystem::path& directory, const Options& options)
    : pool_(options.threads),
      backend_(cpu_backend(options.isa)),
      first_position_(options.first_position),
      lengths_(static_cast<size_t>(options.slots)) {
  const auto read = read_model_config(directory);
  const int32_t context = options.context > 0 || !read.ok() ? options.context : read->context;
  auto model = Transformer::load(directory,
                                 {.weights = options.weights,
                                  .limits = {options.step_tokens, options.slots, context},
                                  .max_logits_rows = options.step_tokens,
                                  .ranks = options.ranks},
                                 backend_, pool_.stream());
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    std::abort();
  }
  model_ = *std::move(model);
  KvArenaShape shape{.formats = {options.kv},
                     .head_dim = config().head_dim,
                     .page_bytes = KvPageLayout::make(options.kv, config().head_dim, 16).page_bytes,
                     .slots = options.slots,
                     .layers = config().layers,
                     .kv_heads = config().kv_heads,
                     .context = context - options.first_position};
  shape.pages = static_cast<int32_t>(shape.rows() * shape.row_pages());
  arena_ = KvArena::make(shape);
  TESSERA_CHECK(arena_ != nullptr, "no memory for pages");
}

void ModelRunner::grow(int32_t slot, int32_t tokens) {
  int32_t& length = lengths_[static_cast<size_t>(slot)];
  const KvGrowth growth{slot, {}, (tokens / kKvGroup - length / kKvGroup) * kKvGroup};
  backend_.kv_resize({.pool = arena_->pool(), .released = {}, .grown = {&growth, 1}}, stream());
  length = tokens;
}

void ModelRunner::clear(int32_t slot) {
  backend_.kv_resize({.pool = arena_->pool(), .released = {&slot, 1}, .grown = {}}, stream());
  lengths_[static_cast<size_t>(slot)] = 0;
}

std::vector<std::vector<float>> ModelRunner::step(std::span<const Piece> pieces) {
  size_t tokens = 0;
  for (const Piece& piece : pieces) {
    tokens += piece.tokens.size();
  }
  std::vector<int32_t> rows(tokens);
  std::iota(rows.begin(), rows.end(), 0);
  return step_rows(pieces, rows);
}

std::vector<std::vector<float>> ModelRunner::step_rows(std::span<const Piece> pieces,
                                                       std::span<const int32_t> rows) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<SequenceSpan> sequences;
  std::vector<AdapterRows> adapters;
  for (const Piece& piece : pieces) {
    const int32_t context = lengths_[static_cast<size_t>(piece.slot)];
    const auto count = static_cast<int32_t>(piece.tokens.size());
    sequences.push_back({piece.slot, static_cast<int32_t>(tokens.size()), count, context, {}});
    if (piece.adapter != nullptr) {
      adapters.push_back({piece.adapter, sequences.back().first_row, count});
    }
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(piece.tokens[static_cast<size_t>(i)]);
      positions.push_back(first_position_ + context + i);
    }
    grow(piece.slot, context + count);
  }
  const auto vocab = static_cast<size_t>(config().vocab);
  std::vector<float> logits(rows.size() * vocab);
  const MatrixView<float> view{logits.data(), static_cast<int64_t>(rows.size()), config().vocab,
                               config().vocab};
  Batch batch{tokens, positions, sequences};
  batch.adapters = adapters;
  model_->forward(batch, arena_->view(), stream());
  if (!rows.empty()) {
    model_->logits(rows, view, stream());
  }
  std::vector<std::vector<float>> split;
  for (size_t row = 0; row < rows.size(); ++row) {
    const float* first = logits.data() + row * vocab;
    split.emplace_back(first, first + vocab);
  }
  return split;
}

std::vector<std::vector<float>> ModelRunner::sequence(std::span<const int32_t> tokens,
                                                      int32_t chunk, const LoraAdapter* adapter) {
  clear(0);
  std::vector<std::vector<float>> all;
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(chunk)) {
    const auto part =
        tokens.subspan(first, std::min(static_cast<size_t>(chunk), tokens.size() - first));
    const Piece piece{0, {part.begin(), part.end()}, adapter};
    for (auto& row : step({&piece, 1})) {
      all.push_back(std::move(row));
    }
  }
  return all;
}

std::vector<int32_t> ModelRunner::greedy(std::span<const int32_t> prompt, int count) {
  std::vector<int32_t> written{index_of_largest(sequence(prompt, 64).back())};
  while (std::ssize(written) < count) {
    const Piece piece{0, {written.back()}};
    written.push_back(index_of_largest(step({&piece, 1}).back()));
  }
  return written;
}

int32_t index_of_largest(std::span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<CpuIsa> cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}) {
    if (cpu_supports(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

}  // namespace tessera
