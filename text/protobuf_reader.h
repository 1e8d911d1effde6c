#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace tessera {

// Iterates over the fields of one protobuf message (not owned). Never reads beyond the message.
class ProtobufReader {
 public:
  struct Field {
    uint32_t number = 0;
    uint64_t integer = 0;    // varint and fixed types
    std::string_view bytes;  // length-delimited types
    enum class Kind { varint, fixed32, fixed64, bytes } kind = Kind::varint;

    float as_float() const {
      const auto bits = static_cast<uint32_t>(integer);
      float value = 0;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
  };

  explicit ProtobufReader(std::string_view message) : rest_(message) {}

  // Returns: the next field; nullopt at the end or if the message is malformed (see ok()).
  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::optional<uint64_t> tag = varint();
    if (!tag || *tag >> 3U == 0 || *tag >> 32U != 0) return fail();
    Field field;
    field.number = static_cast<uint32_t>(*tag >> 3U);
    switch (*tag & 7U) {
      case 0:
        return read_varint(field);
      case 1:
        return read_fixed(field, 8, Field::Kind::fixed64);
      case 2:
        return read_bytes(field);
      case 5:
        return read_fixed(field, 4, Field::Kind::fixed32);
      default:
        return fail();
    }
  }

  bool ok() const { return ok_; }

 private:
  std::optional<Field> fail() {
    ok_ = false;
    rest_ = {};
    return std::nullopt;
  }

  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::optional<Field> read_varint(Field field) {
    const std::optional<uint64_t> value = varint();
    if (!value) return fail();
    field.integer = *value;
    return field;
  }

  std::optional<Field> read_fixed(Field field, size_t size, Field::Kind kind) {
    if (rest_.size() < size) return fail();
    for (size_t i = 0; i < size; ++i) {
      field.integer |= uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
    }
    rest_.remove_prefix(size);
    field.kind = kind;
    return field;
  }

  std::optional<Field> read_bytes(Field field) {
    const std::optional<uint64_t> size = varint();
    if (!size || *size > rest_.size()) return fail();
    field.bytes = rest_.substr(0, static_cast<size_t>(*size));
    field.kind = Field::Kind::bytes;
    rest_.remove_prefix(static_cast<size_t>(*size));
    return field;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace tessera
