#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

inline constexpr char kLayerIndex[] = "{layer}";
inline constexpr char kExpertIndex[] = "{expert}";

// A tensor's name with {layer} and {expert} in the place of their numbers.
struct TensorPattern {
  std::string pattern;
  std::string layer;   // the number; empty: none
  std::string expert;  // the number behind "experts."; empty: none

  static TensorPattern of(std::string name);

  // Returns: `other` with the layer's number, and with that of the expert if there is one.
  std::string name_of(const char* other) const;
};

// A tensor that another one of a Hugging Face directory holds (StackedTensor).
struct HeldTensor {
  std::string name;  // with {expert} if the other one has those of all experts
  int32_t part = 0;
  int32_t parts = 1;
};

// Returns: the tensors that a tensor of that name holds, by the tables of all architectures; empty:
// it holds itself alone.
std::vector<HeldTensor> held_tensors(const std::string& stored_name);

// Returns: the name under which a Hugging Face directory has a tensor.
std::string name_of_holder(const std::string& tensor_name);

}  // namespace tessera
