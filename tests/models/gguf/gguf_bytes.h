#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Little-endian bytes of a GGUF file, written by hand for tests.
template <class T>
void put_number(std::string& bytes, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  bytes.append(raw, sizeof(T));
}

inline void put_text(std::string& bytes, std::string_view text) {
  put_number<uint64_t>(bytes, text.size());
  bytes.append(text);
}

// Builds a file: metadata in any order, then tensors.
class GgufBytes {
 public:
  explicit GgufBytes(uint32_t version = 3) : version_(version) {}

  template <class T>
  GgufBytes& number(std::string_view key, uint32_t type, T value) {
    begin(key, type);
    put_number(metadata_, value);
    return *this;
  }
  GgufBytes& u32(std::string_view key, uint32_t value) { return number(key, 4, value); }
  GgufBytes& f32(std::string_view key, float value) { return number(key, 6, value); }
  GgufBytes& flag(std::string_view key, bool value) { return number<uint8_t>(key, 7, value); }
  GgufBytes& text(std::string_view key, std::string_view value) {
    begin(key, 8);
    put_text(metadata_, value);
    return *this;
  }
  GgufBytes& texts(std::string_view key, const std::vector<std::string>& values) {
    begin_list(key, 8, values.size());
    for (const std::string& value : values) put_text(metadata_, value);
    return *this;
  }
  template <class T>
  GgufBytes& numbers(std::string_view key, uint32_t type, const std::vector<T>& values) {
    begin_list(key, type, values.size());
    for (const T value : values) put_number(metadata_, value);
    return *this;
  }
  // A value of any type, its bytes written by the caller.
  GgufBytes& raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin(key, type);
    metadata_.append(bytes);
    return *this;
  }

  // extents: as in the file, those of a row first
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type,
                    std::string_view bytes) {
    while (data_.size() % alignment_ != 0) data_.push_back('\0');
    return tensor_at(name, extents, type, data_.size(), bytes);
  }
  GgufBytes& tensor_at(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type,
                       uint64_t offset, std::string_view bytes) {
    ++tensors_;
    put_text(table_, name);
    put_number(table_, static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) put_number(table_, extent);
    put_number(table_, type);
    put_number(table_, offset);
    data_.append(bytes);
    return *this;
  }
  GgufBytes& align(uint32_t alignment) {
    alignment_ = alignment;
    return u32("general.alignment", alignment);
  }

  std::string file() const {
    std::string bytes = "GGUF";
    put_number(bytes, version_);
    put_number(bytes, tensors_);
    put_number(bytes, keys_);
    bytes += metadata_ + table_;
    while (bytes.size() % alignment_ != 0) bytes.push_back('\0');
    return bytes + data_;
  }

 private:
  void begin(std::string_view key, uint32_t type) {
    ++keys_;
    put_text(metadata_, key);
    put_number(metadata_, type);
  }
  void begin_list(std::string_view key, uint32_t type, uint64_t count) {
    begin(key, 9);
    put_number(metadata_, type);
    put_number(metadata_, count);
  }

  uint32_t version_;
  uint64_t tensors_ = 0;
  uint64_t keys_ = 0;
  uint32_t alignment_ = 32;
  std::string metadata_;
  std::string table_;
  std::string data_;
};

}  // namespace tessera
