#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/transformer.h"
#include "tests/engine/fake_model.h"

namespace tessera {

// A draft model for the fake model: its likeliest token is the fake model's, but for a share of
// places, where it is another. So drafts are accepted at random. It stores keys and values as any
// transformer does, and remembers which token stands where in each slot: a token that it gets
// behind others than those it stored is a defect.
class FakeDrafter : public Transformer {
 public:
  // wrong_share: of places. Its outputs are wider than the fake model's vocabulary.
  FakeDrafter(int32_t context, double wrong_share);

  void forward(const Batch& batch, const KvPagesView& pages, Stream stream) override;
  void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) override;
  MatrixView<const float> hidden(std::span<const int32_t> rows, Stream stream) override;
  int32_t max_logits_rows() const override { return 64; }
  const ModelConfig& config() const override { return config_; }
  std::string weight_formats() const override { return "f32"; }
  int64_t weight_bytes() const override { return 0; }
  int64_t workspace_bytes() const override { return 0; }

  const std::string& defect() const { return defect_; }  // the first defect; empty if there is none

 private:
  static constexpr int32_t kHeadDim = 32;

  // A row of the batch: its place in the text of its slot.
  struct Row {
    size_t slot = 0;
    size_t position = 0;
  };

  void store(const Batch& batch, const KvPagesView& pages, Stream stream);
  void report(const std::string& defect);

  const double wrong_share_;
  ModelConfig config_;
  std::vector<std::vector<int32_t>> texts_;  // by slot
  std::vector<Row> rows_;                    // of the last batch
  std::vector<float> keys_;                  // of the batch
  std::vector<std::byte> dense_;
  std::string defect_;
};

}  // namespace tessera
