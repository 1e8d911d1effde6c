#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "files/gguf/byte_reader.h"
#include "nlohmann/json.hpp"

namespace tessera {

// A value of a GGUF file's metadata, checked but still in the file's form. So a list of 100,000
// strings takes no memory until it is read. The bytes are not owned.
class GgufValue {
 public:
  // Numbers of the file format.
  enum class Type : uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    list,
    u64,
    i64,
    f64
  };

  // Reads a type and a value of it, and checks every length in it.
  // Errors: InvalidArgument for an unknown type, a length beyond the bytes, or lists nested deeper
  // than kMaxDepth.
  static absl::StatusOr<GgufValue> read(ByteReader& reader);

  uint64_t size() const;  // elements of a list; 1 for other values
  // Returns: true for a list that is long or holds lists. Such values are read when they are used.
  bool is_large() const;

  // Returns: the value as JSON. Strings are copied as they are, also if they are not UTF-8.
  // Errors: InvalidArgument if lists in it have more than kMaxElements elements in total.
  absl::StatusOr<nlohmann::json> to_json() const;

  // Returns: the elements of a list of strings, not owned.
  // Errors: InvalidArgument for any other value, and above kMaxElements.
  absl::StatusOr<std::vector<std::string_view>> texts() const;

  static constexpr uint64_t kShortList = 1024;  // elements
  static constexpr int kMaxDepth = 4;
  static constexpr uint64_t kMaxElements = uint64_t{1} << 22;

 private:
  GgufValue(Type type, std::span<const std::byte> bytes) : type_(type), bytes_(bytes) {}

  Type type_;
  std::span<const std::byte> bytes_;  // after the type
};

}  // namespace tessera
