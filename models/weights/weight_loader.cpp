#include "models/weights/weight_loader.h"

#include <algorithm>
#include <thread>

#include "base/status_macros.h"

namespace tessera {
namespace {

// Rows of one piece, about 1 MiB of f32, a multiple of kPackRows.
int64_t piece_rows(int64_t cols) {
  constexpr int64_t kPieceElements = int64_t{1} << 18;
  return round_up(std::max<int64_t>(kPieceElements / cols, 1), kPackRows);
}

void fill_table_rows(MatrixView<const float> rows, int64_t first, const Backend& backend,
                     WeightViews& views) {
  std::vector<bf16> row(static_cast<size_t>(rows.cols));
  for (int64_t i = 0; i < rows.rows; ++i) {
    const std::span<const float> in = rows.row(i);
    if (views.embedding_f32.data != nullptr) {
      put(backend, in, views.embedding_f32.row(first + i).data());
    } else {
      std::transform(in.begin(), in.end(), row.begin(), [](float value) { return to_bf16(value); });
      put(backend, std::span<const bf16>(row), views.embedding.row(first + i).data());
    }
  }
}

}  // namespace

absl::Status WeightLoader::load(std::span<const PlannedSlot> slots, const LoadOptions& options) {
  for (const PlannedSlot& slot : slots) {
    if (slot.is_the_table) continue;
    for (size_t run = 0; run < slot.runs.size(); ++run) {
      cut(slot, static_cast<int32_t>(run), slot.runs[run].first_row, slot.runs[run].rows);
    }
    if (slot.runs.empty()) {
      cut(slot, -1, 0, slot.shape.rows);
    }
  }
  // Device memory is filled by the thread that has its device.
  const int32_t threads = backend_.memory == nullptr ? std::max(options.threads, 1) : 1;
  std::vector<std::jthread> others;
  for (int32_t i = 1; i < threads; ++i) {
    others.emplace_back([&] { work(options); });
  }
  work(options);
  others.clear();  // joins
  return status_;
}

void WeightLoader::cut(const PlannedSlot& slot, int32_t run, int64_t first, int64_t rows) {
  const int64_t piece = piece_rows(slot.shape.cols);
  for (int64_t at = 0; at < rows; at += piece) {
    pieces_.push_back({&slot, run, first + at, std::min(piece, rows - at)});
    ++left_[&slot];
  }
  total_ += rows * slot.shape.cols;
}

void WeightLoader::work(const LoadOptions& options) {
  SlotReader reader(checkpoint_);
  for (size_t next = next_++; next < pieces_.size() && !failed_; next = next_++) {
    finish(pieces_[next], fill(pieces_[next], reader), options);
  }
}

void WeightLoader::finish(const Piece& piece, absl::Status status, const LoadOptions& options) {
  const std::lock_guard lock(mutex_);
  if (--left_.at(piece.slot) == 0) {
    drop(*piece.slot);
  }
  done_ += piece.count * piece.slot->shape.cols;
  if (!status.ok()) {
    status_.Update(std::move(status));
    failed_ = true;
  } else if (options.progress) {
    options.progress(done_, total_);
  }
}

// Threads that read neighbouring rows bring pages back that others have dropped.
void WeightLoader::drop(const PlannedSlot& slot) const {
  for (const SlotPart& part : parts_.at({slot.shape.index, slot.shape.slot})) {
    checkpoint_.drop_tensor(part.expected->name);
  }
}

absl::Status WeightLoader::fill(const Piece& piece, SlotReader& reader) const {
  if (piece.run >= 0) {
    return fill_packed(piece, reader);
  }
  const WeightShape& shape = piece.slot->shape;
  TESSERA_ASSIGN_OR_RETURN(
      const MatrixView<const float> rows,
      reader.floats(parts_.at({shape.index, shape.slot}), piece.first, piece.count));
  if (shape.kind == WeightKind::table) {
    fill_table_rows(rows, piece.first, backend_, views_);
  } else {
    put(backend_, std::span(rows.data, static_cast<size_t>(piece.count)),
        vector_of(views_, shape).data() + piece.first);
  }
  return absl::OkStatus();
}

absl::Status WeightLoader::fill_packed(const Piece& piece, SlotReader& reader) const {
  const WeightShape& shape = piece.slot->shape;
  const std::vector<SlotPart>& parts = parts_.at({shape.index, shape.slot});
  const auto run = static_cast<size_t>(piece.run);
  const PackedWeight& weight = shape.kind == WeightKind::table
                                   ? views_.embedding_packed
                                   : matrix_of(views_, shape).parts[run];
  const int64_t row = piece.first - piece.slot->runs[run].first_row;
  if (piece.slot->runs[run].keeps_codes) {
    TESSERA_ASSIGN_OR_RETURN(const WeightCodes codes,
                             reader.codes(parts, piece.first, piece.count));
    backend_.pack_codes(codes, row, weight);
  } else {
    TESSERA_ASSIGN_OR_RETURN(const MatrixView<const float> rows,
                             reader.floats(parts, piece.first, piece.count));
    backend_.pack_weight(rows, row, weight);
  }
  return absl::OkStatus();
}

}  // namespace tessera
