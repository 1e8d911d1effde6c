#include "models/decoder_step.h"

#include <algorithm>
#include <array>
#include <span>

#include "models/lora/adapter.h"

namespace tessera {
namespace {

bool is_rounded(const RoundedRows& rows) {
  return rows.format != WeightFormat::f32;
}

}  // namespace

void LayerOps::norm(MatrixView<const float> in, std::span<const float> weight,
                    MatrixView<float> out) const {
  backend.rms_norm({.in = in, .weight = weight, .epsilon = config.norm_epsilon, .out = out},
                   stream);
}

void LayerOps::norm_stream(const StreamNorm& norm, const RoundedRows& rounded) const {
  const float residual = config.multipliers.residual;
  backend.rms_norm({.in = norm.hidden,
                    .weight = norm.weight,
                    .epsilon = config.norm_epsilon / (residual * residual),
                    .scale = norm.scale,
                    .out = norm.out,
                    .rounded = rounded},
                   stream);
}

RoundedRows LayerOps::rounded_for(const StackedWeight& weight,
                                  const AdaptedProduct& adapted) const {
  const WeightFormat format = weight.parts.front().format;
  const bool one_format = std::ranges::all_of(
      weight.all(), [format](const PackedWeight& part) { return part.format == format; });
  const bool served = backend.rounds_ahead != nullptr && backend.rounds_ahead(format);
  return one_format && served && adapted.rows.empty()
             ? RoundedRows{format, workspace.linear_scratch}
             : RoundedRows{};
}

void LayerOps::multiply(const LinearArgs& all, const StackedWeight& weight) const {
  int64_t first = 0;
  for (const PackedWeight& part : weight.all()) {
    LinearArgs args = all;
    args.weight = &part;
    if (!all.bias.empty()) {
      args.bias = all.bias.subspan(static_cast<size_t>(first), static_cast<size_t>(part.rows));
    }
    args.out = all.out.columns(first, part.rows);
    args.scratch = workspace.linear_scratch;
    backend.linear(args, stream);
    first += part.rows;
  }
}

void LayerOps::linear(MatrixView<const float> in, const StackedWeight& weight,
                      std::span<const float> bias, MatrixView<float> out) const {
  multiply({.in = in, .bias = bias, .out = out, .scratch = {}}, weight);
}

void LayerOps::linear_of_norm(const StreamNorm& norm, const StackedWeight& weight,
                              std::span<const float> bias, MatrixView<float> out,
                              const AdaptedProduct& adapted) const {
  const RoundedRows rounded = rounded_for(weight, adapted);
  norm_stream(norm, rounded);
  multiply(
      {.in = norm.out, .bias = bias, .out = out, .scratch = {}, .rounded = is_rounded(rounded)},
      weight);
  add_adapters(adapted, norm.out, out);
}

void LayerOps::add_adapters(const AdaptedProduct& adapted, MatrixView<const float> in,
                            MatrixView<float> out) const {
  std::array<LowRankRows, kLowRankRows> together;
  size_t count = 0;
  int32_t taken = 0;
  const auto multiply_together = [&] {
    if (count == 0) return;
    backend.low_rank(
        {.in = in, .rows = std::span(together).first(count), .low = workspace.low_rank, .out = out},
        stream);
    count = 0;
    taken = 0;
  };
  const auto room = static_cast<int32_t>(workspace.low_rank.rows);
  for (const AdapterRows& rows : adapted.rows) {
    const LowRankProduct& product = rows.adapter->layer(adapted.layer).*adapted.product;
    if (product.count == 0) continue;
    for (int32_t done = 0; done < rows.count; done += together[count - 1].count) {
      if (taken == room) multiply_together();
      together[count++] = {.product = &product,
                           .first_row = rows.first_row + done,
                           .count = std::min(rows.count - done, room - taken),
                           .first_low = taken};
      taken += together[count - 1].count;
    }
  }
  multiply_together();
}

void LayerOps::add(LinearArgs all, const StackedWeight& weight,
                   const AdaptedProduct& adapted) const {
  all.accumulate = adds_stream();
  if (!adds_stream()) {
    all.bias = {};
  }
  multiply(all, weight);
  add_adapters(adapted, all.in, all.out);
  sum_over_ranks(all.out);
}

void LayerOps::add_linear(MatrixView<const float> in, const StackedWeight& weight,
                          std::span<const float> bias, MatrixView<float> hidden,
                          const AdaptedProduct& adapted) const {
  add({.in = in, .bias = bias, .out = hidden, .scratch = {}}, weight, adapted);
}

void LayerOps::add_linear_of_gate(MatrixView<const float> gate_up, MatrixView<float> gated,
                                  const StackedWeight& weight, std::span<const float> bias,
                                  MatrixView<float> hidden, const AdaptedProduct& adapted) const {
  const RoundedRows rounded = rounded_for(weight, adapted);
  backend.silu_mul(
      {.gate_up = gate_up, .out = gated, .activation = config.activation, .rounded = rounded},
      stream);
  add({.in = gated, .bias = bias, .out = hidden, .scratch = {}, .rounded = is_rounded(rounded)},
      weight, adapted);
}

void LayerOps::add_norm_of_linear(MatrixView<const float> in, const StackedWeight& weight,
                                  std::span<const float> norm_weight, MatrixView<float> out,
                                  MatrixView<float> hidden, const AdaptedProduct& adapted) const {
  linear(in, weight, {}, out);
  add_adapters(adapted, in, out);
  sum_over_ranks(out);
  backend.rms_norm({.in = out,
                    .weight = norm_weight,
                    .epsilon = config.norm_epsilon,
                    .accumulate = true,
                    .out = hidden},
                   stream);
}

bool LayerOps::adds_stream() const {
  return ranks == nullptr || ranks->rank() == 0;
}

void LayerOps::sum_over_ranks(MatrixView<float> hidden) const {
  if (ranks != nullptr) {
    ranks->all_reduce_sum({hidden.data, static_cast<size_t>(hidden.rows * hidden.stride)}, stream);
  }
}

}  // namespace tessera
