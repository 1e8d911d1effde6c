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
#include "bench/op_cost.h"
#include "bench/shape.h"
#include "kernels/matrix/weight.h"

namespace tessera::bench {

// Options of a run that ops use.
struct Setup {
  const Device* device = nullptr;      // not owned
  std::vector<std::string_view> isas;  // at least one
  std::vector<WeightFormat> weights;   // for linear
  std::vector<KvFormatName> kv;        // for ops on pages; the device has kernels for all of these
  std::vector<Matrix> matrices;        // for linear, instead of the shape's own; usually empty
  int64_t memory_bytes = 0;            // minimum bytes that every variant cycles over
  bool as_in_model = false;            // at most as many copies as the model has
  bool peers = false;                  // also time other libraries
};

// One way to run a case. The other variants of a case are compared with its first.
struct Variant {
  std::string format;  // "int8", "f16"; "-" if there is only one
  std::string isa;     // instruction set whose peak rate the floor uses
  std::string peer;    // library that runs it; empty: Tessera
  OpCost cost;
  WeightFormat arithmetic = WeightFormat::f32;  // arithmetic of that peak rate
  // Bytes that calls cycle over before they use the same memory again. Variants that differ only in
  // their ISA share this memory and a cursor over it.
  int64_t cycled_bytes = 0;
  std::function<void()> call;  // owns or shares all its operands
  // For ops that consume their state: restores it for `max_calls` calls, outside of the timed part.
  std::function<void()> restore = {};
  int64_t max_calls = 1000;
};

// One op at one size. `prepare` allocates memory and may take a second. Its result is empty if no
// variant was asked for.
struct Case {
  std::string label;                                        // "decode 8 x 1 at 8191 GQA 4 page 64"
  std::vector<std::pair<std::string, int64_t>> parameters;  // values of the label as numbers
  std::function<std::vector<Variant>()> prepare;
};

// An op of the backend's table, and its cases to time. Each op has one file in bench/ops;
// bench/ops/list.cpp lists them all.
struct Op {
  std::string_view name;  // name of its field in Backend
  std::string_view what;
  std::vector<Case> (*cases)(const Setup& setup, const Shape& shape);
};

std::span<const Op> all_ops();

}  // namespace tessera::bench
