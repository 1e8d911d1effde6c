#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/device.h"
#include "bench/kv_formats.h"
#include "bench/shape.h"
#include "kernels/op_cost.h"
#include "kernels/weight.h"

namespace tessera::bench {

// What a run was asked for, as far as ops care.
struct Setup {
  const Device* device = nullptr;
  std::vector<std::string_view> isas;  // at least one
  std::vector<WeightFormat> weights;   // for linear
  std::vector<KvFormatName> kv;        // for ops on pages; the device has kernels for all of these
  std::vector<Matrix> matrices;        // for linear, in place of the shape's own; usually empty
  int64_t memory_bytes = 0;            // what every variant cycles over, at least
  bool as_in_model = false;            // not more copies than the model has
  bool peers = false;                  // other libraries beside ours
};

// One way to do what a case asks for. The first variant of a case is what the others are compared
// with.
struct Variant {
  std::string format;  // "int8", "f16"; "-" where there is only one
  std::string isa;     // whose multiply-adds the floor counts
  std::string peer;    // the library that does it, if it is not ours
  OpCost cost;
  WeightFormat arithmetic = WeightFormat::f32;  // likewise
  // What calls cycle over before they meet the same memory again. Variants that differ in their
  // ISA share it, and a cursor over it.
  int64_t cycled_bytes = 0;
  std::function<void()> call;  // owns, or shares, all it works on
  // For ops that use something up: makes room for `max_calls` calls, outside of the timed part.
  std::function<void()> restore = {};
  int64_t max_calls = 1000;
};

// An op at one size. `prepare` takes memory and may take a second; empty when there is nothing to
// compare (no variant asked for).
struct Case {
  std::string label;                                        // "decode 8 x 1 at 8191 GQA 4 page 64"
  std::vector<std::pair<std::string, int64_t>> parameters;  // the same as numbers
  std::function<std::vector<Variant>()> prepare;
};

// An op of the backend's table and what of it is worth timing. One file each in bench/ops; the list
// stands in bench/ops/list.cpp.
struct Op {
  std::string_view name;  // its field in Backend
  std::string_view what;
  std::vector<Case> (*cases)(const Setup& setup, const Shape& shape);
};

std::span<const Op> all_ops();

}  // namespace tessera::bench
