#include "tests/eval/lab/shipped_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "eval/lab/sequence.h"
#include "tests/eval/lab/golden.h"
#include "text/tokenizer.h"

namespace tessera::lab {
namespace {

constexpr int32_t kVocab = 4096;
constexpr int64_t kLogits = 64;

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::span<const TextSegment> segments,
                              bool /*add_bos*/) const override {
    std::vector<int32_t> ids;
    for (const TextSegment& segment : segments) {
      for (const char byte : segment.text) ids.push_back(byte * 17 % kVocab);
    }
    return ids;
  }
  std::string token_bytes(int32_t /*id*/, bool /*keep_special*/) const override { return "a"; }
  bool strips_leading_space() const override { return false; }
  bool is_special(int32_t /*id*/) const override { return false; }
  std::optional<int32_t> special_id(std::string_view /*text*/) const override { return {}; }
  int32_t vocab_size() const override { return kVocab; }
  std::optional<int32_t> bos_id() const override { return {}; }
  std::optional<int32_t> eos_id() const override { return {}; }
};

Model* load() {
  const std::filesystem::path checkpoint =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "models" / "checkpoints" / "tessera-tiny";
  absl::StatusOr<std::unique_ptr<Model>> loaded =
      Model::load({.model = checkpoint, .weights = WeightFormat::f32, .context = 1024});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  static const ByteTokenizer kTokenizer;
  (*loaded)->tokenizer = &kTokenizer;
  return loaded->release();
}

// Tokens of no text, as shipped_model.py makes them.
std::vector<int32_t> tokens_of(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((i * i * 31 + i * 7 + 11) % kVocab);
  return tokens;
}

void expect_near(std::span<const float> actual, std::span<const float> expected) {
  float largest = 0;
  for (const float logit : expected) largest = std::max(largest, std::fabs(logit));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-3 * double{largest}) << "logit " << i;
  }
}

}  // namespace

Model& shipped_model() {
  static Model* const kModel = [] {
    Model* const made = load();
    made->draft = load();
    return made;
  }();
  return *kModel;
}

void expect_sequence_as_golden(std::string_view name) {
  const nlohmann::json expected = golden(name);
  for (const auto& [numbers, wanted] : expected.items()) {
    SCOPED_TRACE(numbers);
    const auto method = make_method(std::string(name) + ":" + numbers, shipped_model().shape());
    const Rows logits = unpack(wanted["logits"], kLogits);
    const int32_t prompt = wanted["prompt"];
    const std::vector<int32_t> tokens = tokens_of(prompt + static_cast<int32_t>(logits.rows()) - 1);
    Sequence sequence(shipped_model(), *method,
                      std::span(tokens).first(static_cast<size_t>(prompt)));
    if (wanted.contains("kept")) {
      EXPECT_EQ(nlohmann::json(kept_positions(sequence.cache())), wanted["kept"]);
    }
    expect_near(sequence.logits(), logits.row(0));
    for (int64_t row = 1; row < logits.rows(); ++row) {
      SCOPED_TRACE(row);
      sequence.add(tokens[static_cast<size_t>(prompt + row - 1)]);
      expect_near(sequence.logits(), logits.row(row));
    }
  }
}

}  // namespace tessera::lab
