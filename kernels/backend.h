#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device/device_memory.h"
#include "kernels/device/stream.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/delta_rule.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/layers.h"
#include "kernels/ops/low_rank.h"
#include "kernels/ops/pages.h"

namespace tessera {

class Recording;  // kernels/recording.h
struct RecordArgs;

// Table of one backend's functions: the ops (from `embed` on), the sizes of their scratch memory,
// and names. A backend fills it in one place. Tests cover every op of it. Ops
// allocate nothing and keep no state.
// Errors: arguments that an op cannot serve are a bug of the caller, because the supported
// configurations are checked when a model loads.
struct Backend {
  const char* name;  // "cpu" or "cuda"
  const char* isa;   // "scalar", "avx2", "avx512", "avx512_fp16", "amx"; CUDA: "sm_80"

  // Returns: bytes of a packed weight; 0 if there are no kernels for weights of that format.
  int64_t (*packed_weight_bytes)(WeightFormat format, int64_t rows, int64_t cols);
  // Converts rows [first_row, first_row + source.rows) to the format of `weight`. Rows may come in
  // any order, in pieces and on several threads, so a checkpoint is never held twice.
  // Requires: a format of kWeightFormats; pieces that start at multiples of kPackRows.
  void (*pack_weight)(MatrixView<const float> source, int64_t first_row,
                      const PackedWeight& weight);
  // Packs rows of integers as they are, likewise. Null: no coded format has kernels.
  // Requires: weight.format is codes.format.
  void (*pack_codes)(const WeightCodes& codes, int64_t first_row,
                     const PackedWeight& weight) = nullptr;
  // Returns: true if `embed` looks up rows of a packed weight of that format. Null: none.
  bool (*looks_up)(WeightFormat format) = nullptr;
  // Returns: true if rms_norm and silu_mul write rows for products with weights of that format
  // (RoundedRows), and `linear` reads them. Null: none.
  bool (*rounds_ahead)(WeightFormat format) = nullptr;
  // Returns: bytes of an adapter's matrix, whose data is not read. Null, like the next one and
  // low_rank: there are no kernels for adapters.
  int64_t (*low_rank_bytes)(const LowRankMatrix& matrix) = nullptr;
  // Converts a whole matrix to its format.
  void (*pack_low_rank)(MatrixView<const float> source, const LowRankMatrix& matrix) = nullptr;
  int64_t (*linear_scratch_bytes)(int64_t tokens, int64_t cols);
  int64_t (*attention_scratch_bytes)(const StepLimits& limits, int32_t query_heads,
                                     int32_t head_dim);
  // Bytes of PlanAttentionArgs::plan. Null, like plan_attention: `attention` plans for itself.
  int64_t (*attention_plan_bytes)(const StepLimits& limits, int32_t layers, int32_t kv_heads,
                                  int32_t query_heads) = nullptr;
  int64_t (*kv_compress_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*kv_demote_scratch_bytes)(const KvPagesView& pages, Stream);
  int64_t (*sample_scratch_bytes)(const SampleLimits& limits, Stream);

  // Called once on the thread that will call the ops. The CPU backend pins it beside the stream's
  // own threads; CUDA makes the device current.
  void (*attach_thread)(Stream);

  // Memory of views, pools, weights and scratch. Null: host memory. The parts of a step's plan that
  // ops read (tokens, positions, sequences ...) are host memory for every backend. Not owned.
  const DeviceMemory* memory = nullptr;
  // Returns: true if the ops serve pages of that format. Null: all of is_supported(KvFormat).
  bool (*serves_pages)(KvFormat format, int32_t head_dim) = nullptr;
  // True: `attention` reads selected tiles (SequenceSpan::selects), and ops keep key bounds.
  bool selects_tiles = false;
  // True: ops serve residual buffers of codes (KvArenaShape::coded_residuals).
  bool coded_residuals = false;
  // True: kv_score and kv_compress serve scorers with kWeighsOutput (kernels/kv/kv_scorers.h).
  bool weighs_output = false;
  // True: kv_store rotates queries and keys (StepRope).
  bool applies_rope_in_store = false;
  // Records ops to be started together later (kernels/recording.h). Null: ops are called each time.
  std::unique_ptr<Recording> (*record)(const RecordArgs&, Stream) = nullptr;

  void (*embed)(const EmbedArgs&, Stream);
  void (*rms_norm)(const RmsNormArgs&, Stream);
  void (*linear)(const LinearArgs&, Stream);
  void (*low_rank)(const LowRankArgs&, Stream) = nullptr;
  void (*rope)(const RopeArgs&, Stream);
  void (*silu_mul)(const SiluMulArgs&, Stream);
  // Ops of a mixture of experts. Null, all three: there are no kernels for one.
  void (*route)(const RouteArgs&, Stream) = nullptr;
  void (*expert_linear)(const ExpertLinearArgs&, Stream) = nullptr;
  void (*combine)(const CombineArgs&, Stream) = nullptr;
  // Null: there are no kernels for gated delta networks.
  void (*delta_rule)(const DeltaRuleArgs&, Stream) = nullptr;
  void (*kv_resize)(const KvResizeArgs&, Stream);
  void (*kv_fork)(const KvForkArgs&, Stream);
  void (*kv_swap_out)(const KvSnapshotArgs&, Stream);
  void (*kv_swap_in)(const KvSnapshotArgs&, Stream);
  void (*kv_share)(const KvShareArgs&, Stream);
  void (*kv_attach)(const KvAttachArgs&, Stream);
  void (*kv_own)(const KvOwnArgs&, Stream);
  void (*kv_evict)(const KvEvictArgs&, Stream);
  void (*kv_demote)(const KvDemoteArgs&, Stream);
  void (*kv_store)(const KvStoreArgs&, Stream);
  void (*plan_attention)(const PlanAttentionArgs&, Stream) = nullptr;
  void (*attention)(const AttentionArgs&, Stream);
  void (*kv_score)(const KvScoreArgs&, Stream);
  void (*kv_compress)(const KvCompressArgs&, Stream);
  void (*sample)(const SampleArgs&, Stream);
};

inline constexpr int64_t kPackRows = 64;

}  // namespace tessera
