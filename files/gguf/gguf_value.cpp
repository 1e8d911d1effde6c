#include "files/gguf/gguf_value.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using nlohmann::json;
using Type = GgufValue::Type;

constexpr uint32_t kValueTypes = static_cast<uint32_t>(Type::f64) + 1;

// Returns: bytes of a value, or of an element of a list; 0: they vary.
uint64_t fixed_bytes(Type type) {
  constexpr uint64_t kBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

absl::StatusOr<Type> read_type(ByteReader& reader) {
  const auto number = reader.read<uint32_t>();
  if (number >= kValueTypes) {
    return absl::InvalidArgumentError(absl::StrCat("the value type ", number, " is not known"));
  }
  return static_cast<Type>(number);
}

absl::Status truncated() {
  return absl::InvalidArgumentError("a length exceeds the file's bytes: truncated or damaged");
}

absl::Status skip(ByteReader& reader, Type type, int depth);

absl::Status skip_list(ByteReader& reader, int depth) {
  if (depth == GgufValue::kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("lists are nested deeper than ", GgufValue::kMaxDepth));
  }
  TESSERA_ASSIGN_OR_RETURN(const Type element, read_type(reader));
  const auto count = reader.read<uint64_t>();
  if (const uint64_t bytes = fixed_bytes(element); bytes != 0) {
    if (count > reader.left() / bytes) return truncated();
    reader.take(count * bytes);
    return absl::OkStatus();
  }
  // Each element reads at least 8 bytes, so a false count ends at the end of the file.
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_RETURN_IF_ERROR(skip(reader, element, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status skip(ByteReader& reader, Type type, int depth) {
  if (type == Type::list) {
    TESSERA_RETURN_IF_ERROR(skip_list(reader, depth));
  } else if (type == Type::text) {
    reader.text();
  } else {
    reader.take(fixed_bytes(type));
  }
  return reader.ok() ? absl::OkStatus() : truncated();
}

// `budget`: elements that lists may still have.
absl::StatusOr<json> as_json(ByteReader& reader, Type type, uint64_t& budget);

absl::Status too_long() {
  return absl::InvalidArgumentError(
      absl::StrCat("has more than ", GgufValue::kMaxElements, " elements"));
}

absl::StatusOr<json> list_as_json(ByteReader& reader, uint64_t& budget) {
  const auto element = static_cast<Type>(reader.read<uint32_t>());
  const auto count = reader.read<uint64_t>();
  if (count > budget) return too_long();
  budget -= count;
  json list = json::array();
  list.get_ref<json::array_t&>().reserve(count);  // each element has at least a byte
  for (uint64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(json item, as_json(reader, element, budget));
    list.push_back(std::move(item));
  }
  return list;
}

absl::StatusOr<json> as_json(ByteReader& reader, Type type, uint64_t& budget) {
  switch (type) {
    case Type::u8:
      return reader.read<uint8_t>();
    case Type::i8:
      return reader.read<int8_t>();
    case Type::u16:
      return reader.read<uint16_t>();
    case Type::i16:
      return reader.read<int16_t>();
    case Type::u32:
      return reader.read<uint32_t>();
    case Type::i32:
      return reader.read<int32_t>();
    case Type::f32:
      return reader.read<float>();
    case Type::boolean:
      return reader.read<uint8_t>() != 0;
    case Type::text:
      return std::string(reader.text());
    case Type::list:
      return list_as_json(reader, budget);
    case Type::u64:
      return reader.read<uint64_t>();
    case Type::i64:
      return reader.read<int64_t>();
    case Type::f64:
      return reader.read<double>();
  }
  return json();
}

}  // namespace

absl::StatusOr<GgufValue> GgufValue::read(ByteReader& reader) {
  TESSERA_ASSIGN_OR_RETURN(const Type type, read_type(reader));
  ByteReader ahead = reader;
  TESSERA_RETURN_IF_ERROR(skip(ahead, type, 0));
  return GgufValue(type, reader.take(ahead.position() - reader.position()));
}

uint64_t GgufValue::size() const {
  if (type_ != Type::list) return 1;
  ByteReader reader(bytes_);
  reader.read<uint32_t>();
  return reader.read<uint64_t>();
}

bool GgufValue::is_large() const {
  if (type_ != Type::list) return false;
  ByteReader reader(bytes_);
  return static_cast<Type>(reader.read<uint32_t>()) == Type::list ||
         reader.read<uint64_t>() > kShortList;
}

absl::StatusOr<json> GgufValue::to_json() const {
  ByteReader reader(bytes_);
  uint64_t budget = kMaxElements;
  return as_json(reader, type_, budget);
}

absl::StatusOr<std::vector<std::string_view>> GgufValue::texts() const {
  if (type_ != Type::list) return absl::InvalidArgumentError("is no list");
  ByteReader reader(bytes_);
  const auto element = static_cast<Type>(reader.read<uint32_t>());
  const auto count = reader.read<uint64_t>();
  if (count > kMaxElements) return too_long();
  if (element != Type::text && count > 0) {
    return absl::InvalidArgumentError("has an element of another type");
  }
  std::vector<std::string_view> texts;
  texts.reserve(count);  // each element has at least 8 bytes
  for (uint64_t i = 0; i < count; ++i) {
    texts.push_back(reader.text());
  }
  return texts;
}

}  // namespace tessera
