#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::load {

// Cuts a byte stream into the payloads of server-sent events. Keeps at most one unfinished line.
class SseReader {
 public:
  static constexpr size_t kMaxLine = size_t{16} << 20;

  // Calls `payload(std::string_view)` for each "data:" line that is now complete. Other fields and
  // comments are skipped.
  // Returns: false if a line is longer than kMaxLine.
  template <class Payload>
  bool feed(std::string_view bytes, Payload payload) {
    while (true) {
      const size_t end = bytes.find('\n');
      if (end == bytes.npos) {
        rest_.append(bytes);
        return rest_.size() <= kMaxLine;
      }
      std::string_view line = bytes.substr(0, end);
      if (!rest_.empty()) {
        rest_.append(line);
        line = rest_;
      }
      if (!line.empty() && line.back() == '\r') {
        line.remove_suffix(1);
      }
      if (line.substr(0, 5) == "data:") {
        line.remove_prefix(line.size() > 5 && line[5] == ' ' ? 6 : 5);
        payload(line);
      }
      rest_.clear();
      bytes.remove_prefix(end + 1);
    }
  }

 private:
  std::string rest_;
};

}  // namespace tessera::load
