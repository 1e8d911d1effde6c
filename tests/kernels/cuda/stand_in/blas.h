#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A stand-in for cuBLASLt: products of the shapes and types that the backend asks for, in plain
// loops, on the stand-in's streams. Checks pointers, alignment and workspace.

namespace tessera::stand_in {

// Algorithms that the heuristic can suggest.
enum class Order : uint8_t {
  by_inputs,      // sums from the first input to the last
  by_tokens,      // from the last to the first if there are more than 64 tokens
  few_tokens,     // as by_inputs, but not accepted for more than 64 tokens
  much_workspace  // as by_inputs, but with more workspace than there is
};

// Sets the suggestions of the heuristic, the best first; none for E4M3 if !fp8.
void suggest(std::vector<Order> orders, bool fp8);

// Number of products since the last call by an order.
int64_t take_products(Order order);

}  // namespace tessera::stand_in
