#include "models/weights.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/half.h"
#include "models/status_macros.h"
#include "models/tensor_table.h"

namespace tessera {
namespace {

// A tensor of the checkpoint and its place in a slot.
struct Part {
  const StoredTensor* stored = nullptr;
  const ExpectedTensor* expected = nullptr;
};

// Returns: null for a weight outside the layers.
LayerWeights* layer_of(WeightViews& views, const WeightShape& shape) {
  const int32_t layer = shape.index.layer;
  return layer == TensorIndex::kNone ? nullptr : &views.layers[static_cast<size_t>(layer)];
}

PackedWeight& matrix(WeightViews& views, const WeightShape& shape) {
  LayerWeights* layer = layer_of(views, shape);
  switch (shape.slot) {
    case WeightSlot::qkv:
      return layer->qkv;
    case WeightSlot::attention_out:
      return layer->attention_out;
    case WeightSlot::gate_up:
      return layer->gate_up;
    case WeightSlot::down:
      return layer->down;
    default:
      break;
  }
  TESSERA_CHECK(shape.slot == WeightSlot::head, "a slot that is no matrix");
  return views.head;
}

std::span<float>& vector(WeightViews& views, const WeightShape& shape) {
  LayerWeights* layer = layer_of(views, shape);
  switch (shape.slot) {
    case WeightSlot::attention_norm:
      return layer->attention_norm;
    case WeightSlot::qkv_bias:
      return layer->qkv_bias;
    case WeightSlot::query_norm:
      return layer->query_norm;
    case WeightSlot::key_norm:
      return layer->key_norm;
    case WeightSlot::ffn_norm:
      return layer->ffn_norm;
    default:
      break;
  }
  TESSERA_CHECK(shape.slot == WeightSlot::final_norm, "a slot that is no vector");
  return views.final_norm;
}

// Cuts the memory of one slot. Called first with a measuring cutter, then with a cutting one.
void place(const WeightShape& shape, WeightFormat format, TensorType embedding,
           const Backend& backend, MemoryCutter& cutter, WeightViews& views) {
  switch (shape.kind) {
    case WeightKind::table:
      if (embedding == TensorType::f32) {
        views.embedding_f32 = cutter.matrix<float>(shape.rows, shape.cols);
      } else {
        views.embedding = cutter.matrix<bf16>(shape.rows, shape.cols);
      }
      return;
    case WeightKind::vector:
      vector(views, shape) = cutter.array<float>(shape.rows);
      return;
    case WeightKind::matrix: {
      const WeightFormat own = shape.slot == WeightSlot::head ? head_format(format) : format;
      const int64_t bytes = backend.packed_weight_bytes(own, shape.rows, shape.cols);
      matrix(views, shape) = {own, shape.rows, shape.cols, cutter.bytes(bytes)};
      return;
    }
  }
}

// Sets the views of all slots in the memory at `base`; a null base only measures.
// Returns: bytes used.
int64_t place_all(const ModelConfig& config, WeightFormat format, TensorType embedding,
                  const Backend& backend, std::byte* base, WeightViews& views) {
  MemoryCutter cutter(base);
  views.layers.resize(static_cast<size_t>(config.layers));
  for (const WeightShape& shape : weight_shapes(config)) {
    place(shape, format, embedding, backend, cutter, views);
  }
  return cutter.used();
}

absl::Status check_nothing_unexpected(const ModelConfig& config, const Checkpoint& checkpoint,
                                      std::span<const ExpectedTensor> expected) {
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : expected) {
    known.insert(tensor.name);
  }
  for (const std::string& tensor_name : checkpoint.names()) {
    if (!known.contains(tensor_name) && !may_be_ignored(tensor_name, config)) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.describe(tensor_name), ": no ",
                                                     config.architecture,
                                                     " with this configuration has this tensor"));
    }
  }
  return absl::OkStatus();
}

// Blocks do not cross ranks, so that each rank holds blocks of the whole model.
absl::Status check_splits_between_blocks(const ExpectedTensor& tensor, WeightFormat format,
                                         int32_t ranks) {
  const int64_t block = encoding(format).block;
  const bool split = tensor.shape.size() > 1 && tensor.cols < tensor.shape[1];
  if (block == 0 || !split || tensor.cols % block == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      tensor.name, ": ", ranks, " ranks cannot share its ", tensor.shape[1], " inputs: weights of ",
      std::string(name(format)), " have blocks of ", block, " inputs"));
}

// Has no branch per value, because it reads every weight of a model.
bool all_finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t found = 0;
  for (const float value : values) {
    found |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  }
  return found == 0;
}

// Converts the parts of one slot, some rows at a time, so that there is never a second copy of the
// model.
class SlotReader {
 public:
  SlotReader(const Checkpoint& checkpoint, std::span<const Part> parts, int64_t cols)
      : checkpoint_(checkpoint), parts_(parts), cols_(cols) {}

  // Returns: rows [first, first + count) as f32, [count, cols]. Valid until the next call.
  // Errors: InvalidArgument for a value that is not finite.
  absl::StatusOr<MatrixView<const float>> rows(int64_t first, int64_t count) {
    rows_.resize(static_cast<size_t>(count * cols_));
    for (const Part& part : parts_) {
      const int64_t part_first = part.expected->first_row;
      const int64_t begin = std::max(first, part_first);
      const int64_t end = std::min(first + count, part_first + part.expected->rows);
      if (begin >= end) {
        continue;
      }
      const std::span<float> out(rows_.data() + (begin - first) * cols_,
                                 static_cast<size_t>((end - begin) * cols_));
      read(part, begin - part_first, out);
      if (!all_finite(out)) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint_.describe(part.expected->name),
                                                       ": holds a value that is not finite"));
      }
    }
    return MatrixView<const float>{rows_.data(), count, cols_, cols_};
  }

  // Returns: rows of one piece, about 1 MiB of f32, a multiple of kPackRows.
  int64_t piece_rows() const {
    constexpr int64_t kPieceElements = int64_t{1} << 18;
    return round_up(std::max<int64_t>(kPieceElements / cols_, 1), kPackRows);
  }

 private:
  // Reads rows of a part from its row `first` on, until `out` is full.
  void read(const Part& part, int64_t first, std::span<float> out) const {
    const TensorShape& shape = part.expected->shape;
    const int64_t stored_cols = shape.size() > 1 ? shape[1] : 1;
    const int64_t at =
        (part.expected->stored_row + first) * stored_cols + part.expected->stored_col;
    if (stored_cols == cols_) {
      read_f32(*part.stored, at, out);
      return;
    }
    const auto cols = static_cast<size_t>(cols_);
    for (size_t row = 0; row < out.size() / cols; ++row) {
      read_f32(*part.stored, at + static_cast<int64_t>(row) * stored_cols,
               out.subspan(row * cols, cols));
    }
  }

  const Checkpoint& checkpoint_;
  std::span<const Part> parts_;
  int64_t cols_;
  std::vector<float> rows_;
};

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

absl::Status fill(const WeightShape& shape, SlotReader reader, const Backend& backend,
                  WeightViews& views) {
  const int64_t piece = reader.piece_rows();
  for (int64_t first = 0; first < shape.rows; first += piece) {
    const int64_t count = std::min(piece, shape.rows - first);
    TESSERA_ASSIGN_OR_RETURN(const MatrixView<const float> rows, reader.rows(first, count));
    switch (shape.kind) {
      case WeightKind::table:
        fill_table_rows(rows, first, backend, views);
        break;
      case WeightKind::vector:
        put(backend, std::span(rows.data, static_cast<size_t>(count)),
            vector(views, shape).data() + first);
        break;
      case WeightKind::matrix:
        backend.pack_weight(rows, first, matrix(views, shape));
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

TensorType embedding_type(WeightFormat format, TensorType stored) {
  const bool keeps_more = format == WeightFormat::f32 || format == WeightFormat::f16;
  return keeps_more && stored != TensorType::bf16 ? TensorType::f32 : TensorType::bf16;
}

WeightFormat head_format(WeightFormat format) {
  return format == WeightFormat::int4 ? WeightFormat::int8 : format;
}

WeightFormat stored_format(const Checkpoint& checkpoint) {
  const std::set<TensorType> types = checkpoint.matrix_types();
  if (std::any_of(types.begin(), types.end(), is_quantized)) return WeightFormat::f16;
  if (types.size() != 1) return WeightFormat::f32;
  switch (*types.begin()) {
    case TensorType::bf16:
      return WeightFormat::bf16;
    case TensorType::f16:
      return WeightFormat::f16;
    default:
      return WeightFormat::f32;
  }
}

int64_t weight_bytes(const ModelConfig& config, WeightFormat format, TensorType stored_embedding,
                     const Backend& backend) {
  WeightViews views;
  return place_all(config, format, embedding_type(format, stored_embedding), backend, nullptr,
                   views);
}

absl::StatusOr<Weights> Weights::load(const ModelConfig& config, Shard shard,
                                      const Checkpoint& checkpoint, WeightFormat format,
                                      const Backend& backend) {
  if (backend.packed_weight_bytes(format, 1, kPackRows) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("weights: the backend ", backend.name,
                                                   " has no kernels for weights of ",
                                                   std::string(name(format))));
  }
  const std::vector<ExpectedTensor> expected = expected_tensors(config, shard);
  const ModelConfig own = shard_config(config, shard.ranks);
  std::map<std::pair<TensorIndex, WeightSlot>, std::vector<Part>> parts;
  TensorType stored_embedding = TensorType::f32;
  for (const ExpectedTensor& tensor : expected) {
    TESSERA_ASSIGN_OR_RETURN(const StoredTensor* stored,
                             checkpoint.tensor(tensor.name, tensor.shape));
    TESSERA_RETURN_IF_ERROR(check_splits_between_blocks(tensor, format, shard.ranks));
    parts[{tensor.index, tensor.slot}].push_back({stored, &tensor});
    if (tensor.slot == WeightSlot::embedding) {
      stored_embedding = stored->type;
    }
  }
  TESSERA_RETURN_IF_ERROR(check_nothing_unexpected(config, checkpoint, expected));

  Weights weights;
  const TensorType embedding = embedding_type(format, stored_embedding);
  TESSERA_ASSIGN_OR_RETURN(
      weights.memory_,
      AlignedMemory::allocate(weight_bytes(own, format, stored_embedding, backend), backend));
  place_all(own, format, embedding, backend, weights.memory_.data(), weights.views_);
  for (const WeightShape& shape : weight_shapes(own)) {
    const SlotReader reader(checkpoint, parts[{shape.index, shape.slot}], shape.cols);
    TESSERA_RETURN_IF_ERROR(fill(shape, reader, backend, weights.views_));
  }
  return weights;
}

}  // namespace tessera
