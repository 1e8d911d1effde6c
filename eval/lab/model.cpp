#include "eval/lab/model.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "eval/lab/attention.h"

namespace tessera::lab {
namespace {

constexpr int32_t kLeastStepTokens = 512;
constexpr int64_t kPromptBytes = int64_t{4} << 30;  // of all kept prompts

// The parts of one layer that outlive a step: weights of the product q, k, v, and tables of RoPE.
struct LayerParts {
  struct Product {
    const PackedWeight* weight = nullptr;
    std::span<const float> bias;
  };
  std::vector<Product> products;      // of [queries, keys, values], in order of columns
  std::span<const float> query_norm;  // of each head; empty: none
  std::span<const float> key_norm;    // likewise
  float norm_epsilon = 0;
  int32_t rotary_dim = 0;  // 0: no RoPE
  RopeTable keys;
};

// The step that runs. Ops are plain functions, so it is global.
struct RunningStep {
  LayerHandler* handler = nullptr;
  int32_t first = 0;
  std::vector<LinearArgs> products;  // since the last attention or feed-forward block
  std::vector<RmsNormArgs> norms;    // since the last product
  MatrixView<const float> keys_before;
  MatrixView<const float> values;
  Rows keys;
  std::vector<LayerParts>* parts = nullptr;
  int32_t head_dim = 0;
};
RunningStep g_step;
Backend g_plain;  // the backend under the table
Backend g_table;

void rotate_heads(const RopeTable& table, int32_t rotary_dim, int32_t head_dim, int32_t position,
                  std::span<float> heads, float direction) {
  const int32_t half = rotary_dim / 2;
  const float* const cos = table.cos + int64_t{position} * half;
  const float* const sin = table.sin + int64_t{position} * half;
  for (size_t head = 0; head < heads.size(); head += static_cast<size_t>(head_dim)) {
    for (int32_t i = 0; i < half; ++i) {
      float& first = heads[head + static_cast<size_t>(i)];
      float& second = heads[head + static_cast<size_t>(i + half)];
      const float turned = first * cos[i] - direction * second * sin[i];
      second = second * cos[i] + direction * first * sin[i];
      first = turned;
    }
  }
}

void note_norm(const RmsNormArgs& args, Stream stream) {
  g_plain.rms_norm(args, stream);
  g_step.norms.push_back(args);
}

void note_product(const LinearArgs& args, Stream stream) {
  g_plain.linear(args, stream);
  g_step.products.push_back(args);
  g_step.norms.clear();
}

// The products before it are the feed-forward block's, whose input may lie in the same place.
void forget_products(const SiluMulArgs& args, Stream stream) {
  g_plain.silu_mul(args, stream);
  g_step.products.clear();
}

// Notes the products whose input is that of the last one: q, k and v, in one piece or in three.
void note_parts(const KvStoreArgs& args) {
  LayerParts& parts = (*g_step.parts)[static_cast<size_t>(args.layer)];
  const float* const input = g_step.products.back().in.data;
  parts.products.clear();
  for (auto product = g_step.products.rbegin();
       product != g_step.products.rend() && product->in.data == input; ++product) {
    parts.products.insert(parts.products.begin(), {product->weight, product->bias});
  }
  parts.query_norm = parts.key_norm = {};
  for (const RmsNormArgs& norm : g_step.norms) {
    if (norm.out.data == args.keys.data) {
      parts.key_norm = norm.weight;
      parts.norm_epsilon = norm.epsilon;
    } else if (norm.out.data == args.rope.queries.data) {
      parts.query_norm = norm.weight;
    }
  }
  parts.rotary_dim = args.rope.rotary_dim;
  parts.keys = args.rope.key_table;
}

void store(const KvStoreArgs& args, Stream /*stream*/) {
  note_parts(args);
  g_step.keys_before = args.keys;
  g_step.values = args.values;
  g_step.keys = Rows(args.keys.cols);
  g_step.keys.add(args.keys);
  const StepRope& rope = args.rope;
  if (rope.rotary_dim == 0) return;
  for (int64_t row = 0; row < args.keys.rows; ++row) {
    const int32_t position = rope.positions[static_cast<size_t>(row)];
    rotate_heads(rope.key_table, rope.rotary_dim, g_step.head_dim, position, g_step.keys.row(row),
                 1);
    rotate_heads(rope.query_table, rope.rotary_dim, g_step.head_dim, position,
                 rope.queries.row(row), 1);
  }
}

void attention(const AttentionArgs& args, Stream /*stream*/) {
  g_step.handler->attend({.layer = args.layer,
                          .first = g_step.first,
                          .input = g_step.products.back().in,
                          .queries = args.queries,
                          .keys_before = g_step.keys_before,
                          .keys = std::as_const(g_step.keys).view(),
                          .values = g_step.values,
                          .scale = args.scale,
                          .window = args.sliding_window,
                          .out = args.out});
  g_step.products.clear();
}

const Backend& laboratory_backend(CpuIsa isa) {
  g_plain = cpu_backend(isa);
  g_table = g_plain;
  g_table.applies_rope_in_store = true;  // so that the laboratory sees keys before RoPE
  g_table.rounds_ahead = nullptr;        // so that it sees the inputs of products
  g_table.plan_attention = nullptr;
  g_table.rms_norm = note_norm;
  g_table.linear = note_product;
  g_table.silu_mul = forget_products;
  g_table.kv_store = store;
  g_table.attention = attention;
  return g_table;
}

// Computes with full attention and keeps everything.
class Capture final : public LayerHandler {
 public:
  Capture(Prompt& prompt, ThreadPool& pool) : prompt_(prompt), pool_(pool) {}

  void attend(const LayerStep& step) override {
    LayerPrompt& layer = prompt_.layers[static_cast<size_t>(step.layer)];
    layer.input.add(step.input);
    layer.queries.add(step.queries);
    layer.keys_before.add(step.keys_before);
    layer.keys.add(step.keys);
    layer.values.add(step.values);
    layer.scale = step.scale;
    layer.window = step.window;
    lab::attend({.shape = prompt_.shape,
                 .queries = step.queries,
                 .first = step.first,
                 .keys = std::as_const(layer.keys).view(),
                 .values = std::as_const(layer.values).view(),
                 .scale = step.scale,
                 .window = step.window,
                 .out = step.out},
                pool_);
  }

 private:
  Prompt& prompt_;
  ThreadPool& pool_;
};

int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto ends = std::ranges::mismatch(a, b);
  return static_cast<int32_t>(ends.in1 - a.begin());
}

Rows first_rows(const Rows& rows, int32_t count) {
  Rows first(rows.cols());
  first.add(rows.view().first_rows(count));
  return first;
}

class ModelImpl final : public Model {
 public:
  ModelImpl(const ModelOptions& options, std::unique_ptr<ThreadPool> pool)
      : options_(options),
        step_tokens_(std::max(options.context, kLeastStepTokens)),
        pool_(std::move(pool)) {}

  absl::Status load() {
    const CpuIsa isa = options_.isa.value_or(best_cpu_isa());
    const TransformerOptions transformer{
        .weights = options_.weights,
        .limits = {.tokens = step_tokens_, .sequences = 1, .context = options_.context},
        .max_logits_rows = 1,
        .load = {.threads = pool_->threads()}};
    TESSERA_ASSIGN_OR_RETURN(
        transformer_,
        Transformer::load(options_.model, transformer, laboratory_backend(isa), pool_->stream()));
    shape_ = {config().layers, config().heads, config().kv_heads, config().head_dim};
    parts_.resize(static_cast<size_t>(shape_.layers));
    logits_.resize(static_cast<size_t>(config().vocab));
    return absl::OkStatus();
  }

  const Shape& shape() const override { return shape_; }
  const ModelConfig& config() const override { return transformer_->config(); }
  std::string device() const override {
    return absl::StrCat(g_table.name, " (", g_table.isa, "), ", pool_->threads(), " threads");
  }
  ThreadPool& pool() override { return *pool_; }
  int32_t context() const override {
    return options_.context > 0 ? std::min(options_.context, config().context) : config().context;
  }

  std::vector<float> compute(std::span<const int32_t> tokens, int32_t first,
                             LayerHandler& handler) override {
    KvPagesView pages{};  // its shape alone is looked at
    pages.layers = shape_.layers;
    pages.kv_heads = shape_.kv_heads;
    pages.head_dim = shape_.head_dim;
    g_step.handler = &handler;
    g_step.parts = &parts_;
    g_step.head_dim = shape_.head_dim;
    for (size_t done = 0; done < tokens.size();) {
      const size_t count =
          std::min<size_t>(static_cast<size_t>(step_tokens_), tokens.size() - done);
      g_step.first = first + static_cast<int32_t>(done);
      std::vector<int32_t> positions(count);
      for (size_t i = 0; i < count; ++i) positions[i] = g_step.first + static_cast<int32_t>(i);
      SequenceSpan span;
      span.count = static_cast<int32_t>(count);
      span.context = g_step.first;
      transformer_->forward({tokens.subspan(done, count), positions, {&span, 1}}, pages,
                            pool_->stream());
      done += count;
      last_row_ = static_cast<int32_t>(count) - 1;
    }
    const MatrixView<float> logits{logits_.data(), 1, config().vocab, config().vocab};
    transformer_->logits({&last_row_, 1}, logits, pool_->stream());
    g_step.products.clear();
    return logits_;
  }

  std::shared_ptr<const Prompt> prompt(std::span<const int32_t> tokens) override {
    for (auto kept = prompts_.begin(); kept != prompts_.end(); ++kept) {
      if (!std::ranges::equal((*kept)->tokens, tokens)) continue;
      prompts_.splice(prompts_.begin(), prompts_, kept);
      return prompts_.front();
    }
    auto prompt = std::make_shared<Prompt>(begin_prompt(tokens));
    const auto begun = static_cast<int32_t>(prompt->tokens.size());
    prompt->tokens.assign(tokens.begin(), tokens.end());
    Capture capture(*prompt, *pool_);
    prompt->logits = compute(tokens.subspan(static_cast<size_t>(begun)), begun, capture);
    prompts_.push_front(prompt);
    forget_prompts();
    return prompt;
  }

  void rotate(int32_t layer, int32_t position, std::span<float> heads) const override {
    turn(layer, position, heads, 1);
  }
  void rotate_back(int32_t layer, int32_t position, std::span<float> heads) const override {
    turn(layer, position, heads, -1);
  }

  Projected project(int32_t layer, const Rows& input) override {
    const LayerParts& parts = parts_[static_cast<size_t>(layer)];
    TESSERA_CHECK(!parts.products.empty(), "a step comes before project()");
    const int64_t kv_width = int64_t{shape_.kv_heads} * shape_.head_dim;
    const int64_t query_width = int64_t{shape_.heads} * shape_.head_dim;
    Rows qkv(input.rows(), query_width + 2 * kv_width);
    std::vector<std::byte> scratch(
        static_cast<size_t>(g_plain.linear_scratch_bytes(input.rows(), input.cols())) + 64);
    void* aligned = scratch.data();
    size_t room = scratch.size();
    std::align(64, scratch.size() - 64, aligned, room);
    int64_t column = 0;
    for (const LayerParts::Product& product : parts.products) {
      g_plain.linear({.in = input.view(),
                      .weight = product.weight,
                      .bias = product.bias,
                      .out = qkv.view().columns(column, product.weight->rows),
                      .scratch = {static_cast<std::byte*>(aligned), scratch.size() - 64}},
                     pool_->stream());
      column += product.weight->rows;
    }
    TESSERA_CHECK(column == qkv.cols(), "products of q, k and v");
    const MatrixView<float> queries = qkv.view().columns(0, query_width);
    const MatrixView<float> keys = qkv.view().columns(query_width, kv_width);
    norm_heads(queries, parts.query_norm, parts.norm_epsilon);
    norm_heads(keys, parts.key_norm, parts.norm_epsilon);
    Projected made{Rows(query_width), Rows(kv_width), Rows(kv_width)};
    made.queries_before.add(queries);
    made.keys_before.add(keys);
    made.values.add(qkv.view().columns(query_width + kv_width, kv_width));
    return made;
  }

 private:
  // weight: of the heads' RMS norm; empty: they have none
  void norm_heads(MatrixView<float> heads, std::span<const float> weight, float epsilon) {
    if (weight.empty()) return;
    g_plain.rms_norm({.in = heads, .weight = weight, .epsilon = epsilon, .out = heads},
                     pool_->stream());
  }

  // Returns: the rows that a kept prompt shares, with its tokens as far as they go.
  Prompt begin_prompt(std::span<const int32_t> tokens) const {
    Prompt begun;
    begun.shape = shape_;
    begun.pool = pool_.get();
    begun.layers.resize(static_cast<size_t>(shape_.layers));
    const Prompt* longest = nullptr;
    int32_t shared = 0;
    for (const std::shared_ptr<const Prompt>& kept : prompts_) {
      // The last token is computed in any case: it gives the logits.
      const int32_t same =
          std::min(common_prefix(kept->tokens, tokens), static_cast<int32_t>(tokens.size()) - 1);
      if (same > shared) {
        longest = kept.get();
        shared = same;
      }
    }
    begun.tokens.assign(tokens.begin(), tokens.begin() + shared);
    for (size_t i = 0; i < begun.layers.size(); ++i) {
      begun.layers[i] = longest == nullptr ? empty_layer() : beginning(longest->layers[i], shared);
    }
    return begun;
  }

  LayerPrompt empty_layer() const {
    const int64_t kv_width = int64_t{shape_.kv_heads} * shape_.head_dim;
    return {.input = Rows(config().hidden),
            .queries = Rows(int64_t{shape_.heads} * shape_.head_dim),
            .keys_before = Rows(kv_width),
            .keys = Rows(kv_width),
            .values = Rows(kv_width)};
  }

  static LayerPrompt beginning(const LayerPrompt& of, int32_t tokens) {
    return {.input = first_rows(of.input, tokens),
            .queries = first_rows(of.queries, tokens),
            .keys_before = first_rows(of.keys_before, tokens),
            .keys = first_rows(of.keys, tokens),
            .values = first_rows(of.values, tokens)};
  }

  int64_t bytes_of(const Prompt& prompt) const {
    const int64_t width = config().hidden + config().query_width() + 3 * config().kv_width();
    return int64_t{prompt.size()} * shape_.layers * width * int64_t{sizeof(float)};
  }

  void forget_prompts() {
    int64_t bytes = 0;
    for (auto kept = prompts_.begin(); kept != prompts_.end();) {
      bytes += bytes_of(**kept);
      const bool forget = bytes > kPromptBytes && kept != prompts_.begin();
      kept = forget ? prompts_.erase(kept) : std::next(kept);
    }
  }

  void turn(int32_t layer, int32_t position, std::span<float> heads, float direction) const {
    const LayerParts& parts = parts_[static_cast<size_t>(layer)];
    if (parts.rotary_dim == 0) return;
    rotate_heads(parts.keys, parts.rotary_dim, shape_.head_dim, position, heads, direction);
  }

  const ModelOptions options_;
  const int32_t step_tokens_;
  const std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Transformer> transformer_;
  Shape shape_;
  std::vector<LayerParts> parts_;  // [layers]
  std::vector<float> logits_;      // [vocab]
  int32_t last_row_ = 0;
  std::list<std::shared_ptr<const Prompt>> prompts_;  // the last used first
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::load(const ModelOptions& options) {
  auto model = std::make_unique<ModelImpl>(options, std::make_unique<ThreadPool>(options.threads));
  TESSERA_RETURN_IF_ERROR(model->load());
  return model;
}

}  // namespace tessera::lab
