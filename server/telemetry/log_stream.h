#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace tessera {

// stderr as the log writes to it. A reader that stops, such as a paused collector, must stop no
// thread of the server, and not its end. So a line that stderr does not take in time is lost.
// Thread-safe.
class LogStream {
 public:
  // `patience`: time that a line waits for room, where the line before was taken.
  explicit LogStream(int descriptor,
                     std::chrono::milliseconds patience = std::chrono::milliseconds(100))
      : descriptor_(descriptor), patience_(patience) {}
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;

  // Writes a line with its end. While the reader is stuck, waits for nothing and drops it.
  void write(std::string_view line);

  // Waits for the reader, as long as it takes. For a thread that has a bounded queue of lines.
  // Returns: false, at once, after hurry().
  bool wait_for_reader() const;

  // No line waits from now on.
  void hurry() { hurried_ = true; }

  // Returns: the number of lines dropped since the last call. 0 while the reader is stuck.
  int64_t take_dropped();

 private:
  bool takes_bytes(std::chrono::milliseconds patience) const;
  bool write_part(std::string_view part) const;

  const int descriptor_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> hurried_ = false;
  std::mutex mutex_;  // guards the fields below, and keeps lines whole
  bool stuck_ = false;
  bool cut_ = false;  // the last line has no end
  int64_t dropped_ = 0;
};

}  // namespace tessera
