#include "engine/start_bytes.h"

#include "base/status_macros.h"
#include "engine/draft_model.h"
#include "engine/kv/kv_shape.h"
#include "engine/kv/swap_room.h"
#include "engine/sampler.h"
#include "engine/tier/block_tiers.h"
#include "models/transformer.h"
#include "models/workspace.h"

namespace tessera {

absl::StatusOr<StartBytes> start_bytes(const EngineOptions& options, const StartModel& model) {
  const int32_t rows = TransformerOptions().max_logits_rows;
  const KvCacheOptions cache = kv_cache_options(options, model.own, model.backend);
  TESSERA_RETURN_IF_ERROR(check_options(cache));
  StartBytes bytes{
      .weights = model.weight_bytes,
      .workspace = Workspace::bytes_for(model.own, step_limits(options), rows, model.backend),
      .sampling = Sampler::bytes_for(model.own.vocab, rows, model.backend, model.stream),
      .kv = {}};
  TESSERA_ASSIGN_OR_RETURN(bytes.kv, shape_of(cache));
  if (model.draft != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const KvArenaShape kv, shape_of(DraftModel::cache_options(
                                                        options, *model.draft, model.backend)));
    bytes.draft =
        model.draft_weight_bytes + kv.total_bytes() +
        Workspace::bytes_for(*model.draft, DraftModel::limits(options), rows, model.backend);
  }
  bytes.swap = swap_room_bytes(bytes.kv);
  bytes.stores = BlockTiers::bytes_for(options.tiers, bytes.kv);
  return bytes;
}

}  // namespace tessera
