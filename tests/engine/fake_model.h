#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "models/transformer.h"

namespace tessera {

// A model whose next token is a pure function of all earlier tokens, as read from pages and
// residual buffer. forward() stores each token with the scalar kv_store: token and position in the
// keys of every head, the head's index in its values, and positions beside the pages where token
// scores are kept. It then reads the whole sequence back from
// every head. A page that is lost, shared, swapped or stale therefore causes a defect or another
// text.
// Requires: pages of floats, and policies that keep every token in its place.
class FakeModel : public Transformer {
 public:
  static constexpr int32_t kVocab = 61;
  static constexpr int32_t kEos = 1;
  static constexpr int32_t kPoison = 2;     // after this token, all logits are NaN
  static constexpr int32_t kOverflow = 60;  // after two of them, hidden states are zero

  // window: positions that queries of the last layer see; 0: all.
  explicit FakeModel(int32_t context, int32_t layers = 2, int32_t kv_heads = 2, int32_t window = 0);

  static void logits_after(std::span<const int32_t> tokens, std::span<float> logits);
  // hidden: [kv_heads * 2]
  static void hidden_after(std::span<const int32_t> tokens, std::span<float> hidden);

  void forward(const Batch& batch, const KvPagesView& pages, Stream stream) override;
  void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) override;
  MatrixView<const float> hidden(std::span<const int32_t> rows, Stream stream) override;
  int32_t max_logits_rows() const override { return 3; }
  const ModelConfig& config() const override { return config_; }
  std::string weight_formats() const override { return "f32"; }
  int64_t weight_bytes() const override { return 0; }
  int64_t workspace_bytes() const override { return 0; }

  const std::string& defect() const { return defect_; }  // the first defect; empty if there is none
  int32_t largest_batch() const { return largest_batch_; }  // in tokens

 private:
  // The state that logits are computed from.
  struct Digest {
    uint64_t state = 0;
    bool poisoned = false;
    bool overflown = false;
    int32_t last = -1;

    void add(int32_t token);
    void write_logits(std::span<float> logits) const;
    void write_hidden(std::span<float> hidden) const;
  };

  void store(const Batch& batch, const KvPagesView& pages, Stream stream);
  static void store_positions(const SequenceSpan& span, const KvScoring& scoring,
                              const KvPagesView& pages);
  void read_back(const SequenceSpan& span, const KvPagesView& pages);
  void report(const std::string& defect);

  ModelConfig config_;
  std::vector<int32_t> tokens_;       // one sequence, as read from its pages
  std::vector<float> keys_, values_;  // of the batch, one layer
  std::vector<std::byte> dense_;
  std::vector<Digest> digests_;  // one for each row of the batch: its sequence up to its token
  std::vector<float> hidden_;    // of one call of hidden()
  std::string defect_;
  int32_t largest_batch_ = 0;
};

// The result that a request must give alone, computed from the fake and the sampler directly.
struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::stop;
};
Outcome run_alone(const EngineRequest& request, int32_t context);

}  // namespace tessera
