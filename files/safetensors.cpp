#include "files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/json_fields.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDimensions = 8;
constexpr int64_t kLengthBytes = 8;

constexpr auto kLastType = TensorType::boolean;  // later types are those of GGUF files

// Byte range of a tensor in the data, not yet checked against the other tensors.
struct Extent {
  const std::string* name;
  int64_t begin;
  int64_t end;
};

// Parses a non-negative integer of the header. The format has no negative numbers and no floats.
absl::StatusOr<int64_t> whole_number(const json& value) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError("is not a whole number below 2^63");
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

absl::StatusOr<TensorType> parse_type(const json& entry) {
  const auto field = entry.find("dtype");
  if (field == entry.end() || !field->is_string()) {
    return absl::InvalidArgumentError("dtype: is missing or no string");
  }
  const auto& text = field->get_ref<const std::string&>();
  for (int i = 0; i <= static_cast<int>(kLastType); ++i) {
    if (text == name(static_cast<TensorType>(i))) return static_cast<TensorType>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype: ", in_quotes(text), " is not known"));
}

// Returns: the product of the extents times the bytes of an element. Errors: it overflows int64_t.
absl::StatusOr<int64_t> byte_size(TensorType type, const TensorShape& shape) {
  int64_t bytes = bytes_of(type);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("shape: ", shown(shape), " is too large"));
    }
  }
  return bytes;
}

absl::StatusOr<TensorShape> parse_shape(const json& entry) {
  const auto field = entry.find("shape");
  if (field == entry.end() || !field->is_array() || field->size() > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: is missing or no list of at most ", kMaxDimensions, " numbers"));
  }
  TensorShape shape;
  for (const json& extent : *field) {
    absl::StatusOr<int64_t> number = whole_number(extent);
    if (!number.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("shape: ", number.status().message()));
    }
    shape.push_back(*number);
  }
  return shape;
}

absl::StatusOr<std::pair<int64_t, int64_t>> parse_offsets(const json& entry, int64_t data_bytes) {
  const auto field = entry.find("data_offsets");
  if (field == entry.end() || !field->is_array() || field->size() != 2) {
    return absl::InvalidArgumentError("data_offsets: is missing or no list of two numbers");
  }
  int64_t offsets[2];
  for (size_t i = 0; i < 2; ++i) {
    absl::StatusOr<int64_t> number = whole_number((*field)[i]);
    if (!number.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("data_offsets: ", number.status().message()));
    }
    offsets[i] = *number;
  }
  if (offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("data_offsets: [", offsets[0], ", ", offsets[1],
                                                   "] do not lie in the file's ", data_bytes,
                                                   " bytes of data: truncated or damaged"));
  }
  return std::pair(offsets[0], offsets[1]);
}

absl::StatusOr<StoredTensor> parse_tensor(const json& entry, std::span<const std::byte> data) {
  if (!entry.is_object()) {
    return absl::InvalidArgumentError("is not a JSON object");
  }
  StoredTensor tensor;
  TESSERA_ASSIGN_OR_RETURN(tensor.type, parse_type(entry));
  TESSERA_ASSIGN_OR_RETURN(tensor.shape, parse_shape(entry));
  TESSERA_ASSIGN_OR_RETURN(const auto offsets,
                           parse_offsets(entry, static_cast<int64_t>(data.size())));
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, byte_size(tensor.type, tensor.shape));
  if (bytes != offsets.second - offsets.first) {
    return absl::InvalidArgumentError(absl::StrCat("has ", offsets.second - offsets.first,
                                                   " bytes, but ", std::string(name(tensor.type)),
                                                   " ", shown(tensor.shape), " takes ", bytes));
  }
  tensor.bytes = data.subspan(static_cast<size_t>(offsets.first), static_cast<size_t>(bytes));
  return tensor;
}

// Checks that the tensors follow each other and fill the data, without overlap and without gaps.
absl::Status check_cover(std::vector<Extent> extents, int64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t reached = 0;
  const std::string* before = nullptr;
  for (const Extent& extent : extents) {
    if (extent.begin < reached) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", in_quotes(*extent.name),
                                                     " overlaps tensor ", in_quotes(*before)));
    }
    if (extent.begin > reached) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", in_quotes(*extent.name), " begins at ", extent.begin,
                       ", leaving a gap of ", extent.begin - reached, " bytes before it"));
    }
    reached = extent.end;
    before = extent.name;
  }
  if (reached != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensors end at ", reached, ", but there are ", data_bytes, " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  SafetensorsFile file(path, std::move(mapped));
  if (absl::Status parsed = file.parse(); !parsed.ok()) {
    return absl::Status(parsed.code(), absl::StrCat(path.string(), ": ", parsed.message()));
  }
  return file;
}

absl::Status SafetensorsFile::parse() {
  const std::span<const std::byte> bytes = file_.bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes.size(), " bytes, too few for a safetensors file"));
  }
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header length ", header_bytes, " exceeds the file's ", bytes.size(),
        " bytes or the format's limit of ", kMaxHeaderBytes, ": truncated or damaged"));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data() + kLengthBytes),
                              header_bytes);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  TESSERA_ASSIGN_OR_RETURN(const json header, parse_strict_json(text, "header"));
  if (!header.is_object()) {
    return absl::InvalidArgumentError("header: is not a JSON object");
  }
  std::vector<Extent> extents;
  for (const auto& [tensor_name, entry] : header.items()) {
    if (tensor_name == "__metadata__") {
      continue;
    }
    absl::StatusOr<StoredTensor> tensor = parse_tensor(entry, data);
    if (!tensor.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", in_quotes(tensor_name), ": ", tensor.status().message()));
    }
    const auto added = tensors_.emplace(tensor_name, *std::move(tensor)).first;
    const int64_t begin = added->second.bytes.data() - data.data();
    const auto size = static_cast<int64_t>(added->second.bytes.size());
    extents.push_back({&added->first, begin, begin + size});
  }
  return check_cover(std::move(extents), static_cast<int64_t>(data.size()));
}

const StoredTensor* SafetensorsFile::find(std::string_view tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace tessera
