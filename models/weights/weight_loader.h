#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "models/weights/slot_reader.h"
#include "models/weights/weight_plan.h"

namespace tessera {

// The tensors of each slot.
using SlotParts = std::map<std::pair<TensorIndex, WeightSlot>, std::vector<SlotPart>>;

// Fills planned slots from a checkpoint, piece by piece, on several threads. Owns nothing.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const SlotParts& parts, const Backend& backend,
               WeightViews& views)
      : checkpoint_(checkpoint), parts_(parts), backend_(backend), views_(views) {}

  // Errors: those of SlotReader; with several, that of the first piece that had one.
  absl::Status load(std::span<const PlannedSlot> slots, const LoadOptions& options);

 private:
  // Some rows of a run; of a slot that is not packed, of the slot.
  struct Piece {
    const PlannedSlot* slot = nullptr;
    int32_t run = -1;   // -1: not packed
    int64_t first = 0;  // row of the slot
    int64_t count = 0;
  };

  void cut(const PlannedSlot& slot, int32_t run, int64_t first, int64_t rows);
  void work(const LoadOptions& options);
  absl::Status fill(const Piece& piece, SlotReader& reader) const;
  absl::Status fill_packed(const Piece& piece, SlotReader& reader) const;
  void finish(const Piece& piece, absl::Status status, const LoadOptions& options);
  void drop(const PlannedSlot& slot) const;

  const Checkpoint& checkpoint_;
  const SlotParts& parts_;
  const Backend& backend_;
  WeightViews& views_;
  std::vector<Piece> pieces_;
  int64_t total_ = 0;  // weights
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;                            // guards the rest
  std::map<const PlannedSlot*, int64_t> left_;  // pieces of each slot
  int64_t done_ = 0;                            // weights
  absl::Status status_;                         // the first error
};

}  // namespace tessera
