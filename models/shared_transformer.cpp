#include "models/shared_transformer.h"

#include <utility>

namespace tessera {
namespace {

class SharedTransformer final : public Transformer {
 public:
  explicit SharedTransformer(std::shared_ptr<Transformer> shared) : shared_(std::move(shared)) {}

  void prepare(const KvPagesView& pages, Stream stream) override {
    shared_->prepare(pages, stream);
  }
  void forward(const Batch& batch, const KvPagesView& pages, Stream stream) override {
    shared_->forward(batch, pages, stream);
  }
  void logits(std::span<const int32_t> rows, MatrixView<float> logits, Stream stream) override {
    shared_->logits(rows, logits, stream);
  }
  MatrixView<const float> hidden(std::span<const int32_t> rows, Stream stream) override {
    return shared_->hidden(rows, stream);
  }
  int32_t max_logits_rows() const override { return shared_->max_logits_rows(); }
  absl::StatusOr<int64_t> measure_adapter(const std::filesystem::path& path) const override {
    return shared_->measure_adapter(path);
  }
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> load_adapter(
      const std::filesystem::path& path) const override {
    return shared_->load_adapter(path);
  }
  const ModelConfig& config() const override { return shared_->config(); }
  std::string weight_formats() const override { return shared_->weight_formats(); }
  int64_t weight_bytes() const override { return shared_->weight_bytes(); }
  int64_t workspace_bytes() const override { return shared_->workspace_bytes(); }

 private:
  const std::shared_ptr<Transformer> shared_;
};

}  // namespace

std::unique_ptr<Transformer> share_transformer(std::shared_ptr<Transformer> shared) {
  return std::make_unique<SharedTransformer>(std::move(shared));
}

}  // namespace tessera
