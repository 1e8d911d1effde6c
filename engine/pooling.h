#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tessera {

// Selects the hidden states of a prompt that become its embedding. A hidden state is the final
// norm's output.
enum class Pooling : uint8_t {
  last,  // of the last token, which alone has read the whole prompt in a causal model
  mean,  // the mean over all tokens
  cls,   // of the first token
};

// Names of the poolings, for requests and settings.
struct NamedPooling {
  std::string_view name;
  Pooling pooling;
};
inline constexpr NamedPooling kPoolings[] = {
    {"last", Pooling::last}, {"mean", Pooling::mean}, {"cls", Pooling::cls}};

// Returns: the pooling of that name; none if there is none.
std::optional<Pooling> parse_pooling(std::string_view name);

// The embedding of one prompt while its hidden states are computed, in ascending order of position.
// Sums are in f64, one position after the other, so that they do not depend on the division into
// steps. Allocates memory only when it is constructed.
class HiddenPool {
 public:
  // hidden: values of a hidden state.
  HiddenPool(Pooling pooling, int32_t prompt_tokens, int32_t hidden);

  // Returns: true if the hidden state at `position` is needed and was not added yet.
  bool wants(int32_t position) const { return next_ <= position && position < end_; }
  // Returns: the first such position; the largest number if there is none.
  int32_t first_wanted() const {
    return next_ < end_ ? next_ : std::numeric_limits<int32_t>::max();
  }

  // Requires: wants(position), and no earlier one. hidden: [hidden]
  void add(int32_t position, std::span<const float> hidden);

  // Returns: the embedding, [hidden], not normalised. Valid after the last add().
  std::span<const float> embedding() const { return embedding_; }
  bool complete() const { return next_ == end_; }

 private:
  int32_t next_;
  int32_t end_;
  double weight_;  // of each hidden state
  std::vector<double> sum_;
  std::vector<float> embedding_;
};

}  // namespace tessera
