#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "models/config.h"
#include "models/transformer.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tessera {

// Products and norms with the arguments that all blocks of a decoder share. A view, made for each
// step.
struct LayerOps {
  const Backend& backend;
  const ModelConfig& config;
  const Workspace::Views& workspace;
  Communicator* ranks;  // null: one process has the whole model
  Stream stream;

  // Takes a mean over each weight.size() columns: a whole row, or a head.
  void norm(MatrixView<const float> in, std::span<const float> weight, MatrixView<float> out) const;
  // The norm of the residual stream, times `scale`. The stream is kept divided by
  // Multipliers::residual, which so needs no op of its own: a norm does not see the factor if its
  // epsilon is divided by the factor's square.
  void norm_stream(MatrixView<const float> hidden, std::span<const float> weight, float scale,
                   MatrixView<float> out) const;
  void linear(MatrixView<const float> in, const StackedWeight& weight, std::span<const float> bias,
              MatrixView<float> out) const;
  // out = in * weight, each part's rows in their columns.
  void multiply(MatrixView<const float> in, const StackedWeight& weight,
                std::span<const float> bias, bool accumulate, MatrixView<float> out) const;
  // hidden += in * weight + bias. With ranks, each one computes a partial sum, and only rank 0 adds
  // the bias and the old residual stream to its own.
  void add_linear(MatrixView<const float> in, const StackedWeight& weight,
                  std::span<const float> bias, MatrixView<float> hidden) const;
  // Returns: true if this rank adds the old residual stream.
  bool adds_stream() const;
  // hidden = the sum over all ranks.
  void sum_over_ranks(MatrixView<float> hidden) const;
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
};

}  // namespace tessera
