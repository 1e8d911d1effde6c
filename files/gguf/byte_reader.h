#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace tessera {

// Reads little-endian values from untrusted bytes. The first read beyond the end fails, and so do
// all later ones; they return zeros. So a caller checks ok() once after several reads.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::span<const std::byte> read = take(sizeof(T));
    if (!read.empty()) std::memcpy(&value, read.data(), sizeof(T));
    return value;
  }

  // Returns: the next `count` bytes, not owned; empty if there are fewer.
  std::span<const std::byte> take(uint64_t count) {
    if (!ok_ || count > bytes_.size() - position_) {
      ok_ = false;
      return {};
    }
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return taken;
  }

  // Reads a string: its length as u64, then its bytes. Not owned.
  std::string_view text() {
    const std::span<const std::byte> bytes = take(read<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  bool ok() const { return ok_; }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace tessera
