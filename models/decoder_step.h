#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "models/config/model_config.h"
#include "models/lora/product.h"
#include "models/transformer.h"
#include "models/weights/key_frames.h"
#include "models/weights/weights.h"
#include "models/workspace.h"

namespace tessera {

// Rows of the residual stream, and their norm.
struct StreamNorm {
  MatrixView<const float> hidden;  // [tokens, hidden]
  std::span<const float> weight;   // [hidden]
  float scale = 1;                 // of the norm
  MatrixView<float> out;           // [tokens, hidden]; may alias `hidden`
};

// The adapters of a step's rows, for one product of one layer.
struct AdaptedProduct {
  std::span<const AdapterRows> rows;  // Batch::adapters; empty: nothing is changed
  int32_t layer = 0;
  LowRankProduct LoraLayer::*product = nullptr;
};

// Products and norms with the arguments that all blocks of a decoder share. A view, made for each
// step.
struct LayerOps {
  const Backend& backend;
  const ModelConfig& config;
  const Workspace::Views& workspace;
  const KeyFrames& key_frames;
  Communicator* ranks;  // null: one process has the whole model
  Stream stream;

  // Takes a mean over each weight.size() columns: a whole row, or a head.
  void norm(MatrixView<const float> in, std::span<const float> weight, MatrixView<float> out) const;
  // The norm of the residual stream, times its scale. The stream is kept divided by
  // Multipliers::residual, which so needs no op of its own: a norm does not see the factor if its
  // epsilon is divided by the factor's square.
  // rounded: in the place of norm.out
  void norm_stream(const StreamNorm& norm, const RoundedRows& rounded = {}) const;
  void linear(MatrixView<const float> in, const StackedWeight& weight, std::span<const float> bias,
              MatrixView<float> out) const;
  // Products with `adapted` add those of each row's adapter.
  // out = the norm * weight + bias. norm.out receives the norm, unless it is rounded for the
  // product.
  void linear_of_norm(const StreamNorm& norm, const StackedWeight& weight,
                      std::span<const float> bias, MatrixView<float> out,
                      const AdaptedProduct& adapted = {}) const;
  // hidden += in * weight + bias. With ranks, each one computes a partial sum, and only rank 0 adds
  // the bias and the old residual stream to its own.
  void add_linear(MatrixView<const float> in, const StackedWeight& weight,
                  std::span<const float> bias, MatrixView<float> hidden,
                  const AdaptedProduct& adapted) const;
  // hidden += norm(in * weight), a norm behind a block. `out` receives the product, summed over all
  // ranks.
  void add_norm_of_linear(MatrixView<const float> in, const StackedWeight& weight,
                          std::span<const float> norm_weight, MatrixView<float> out,
                          MatrixView<float> hidden, const AdaptedProduct& adapted) const;
  // hidden += in * weight + bias, where `in` is activation(gate) * up, which `gated` receives
  // unless they are rounded.
  void add_linear_of_gate(MatrixView<const float> gate_up, MatrixView<float> gated,
                          const StackedWeight& weight, std::span<const float> bias,
                          MatrixView<float> hidden, const AdaptedProduct& adapted) const;
  // Returns: true if this rank adds the old residual stream.
  bool adds_stream() const;
  // hidden = the sum over all ranks.
  void sum_over_ranks(MatrixView<float> hidden) const;

 private:
  // Returns: place of rows for a product with `weight` alone, which an op writes as the product
  // reads them. f32: the backend does not serve that, the parts of the weight differ in format, or
  // adapters read the rows as they are.
  RoundedRows rounded_for(const StackedWeight& weight, const AdaptedProduct& adapted) const;
  // The product of each part of `weight`. `all`: in, bias and out of all parts together.
  void multiply(const LinearArgs& all, const StackedWeight& weight) const;
  void add(LinearArgs all, const StackedWeight& weight, const AdaptedProduct& adapted) const;
  // Adds the products of the rows' adapters to `out`: those of all adapters in one call of the op,
  // for as many rows as its scratch has.
  void add_adapters(const AdaptedProduct& adapted, MatrixView<const float> in,
                    MatrixView<float> out) const;
};

// A step as the blocks of a decoder see it. Refers to the transformer's parts, owns nothing.
struct DecoderStep {
  const LayerOps ops;
  const Batch& batch;
  const KvPagesView& pages;

  // Returns: the rows of a workspace matrix that belong to the step's tokens.
  MatrixView<float> rows(const MatrixView<float>& matrix) const {
    return matrix.first_rows(std::ssize(batch.tokens));
  }

  // Returns: the adapters of the step's rows for a product of a layer.
  AdaptedProduct adapted(const LayerWeights& weights, LowRankProduct LoraLayer::*product) const {
    return {batch.adapters, weights.layer, product};
  }
};

}  // namespace tessera
