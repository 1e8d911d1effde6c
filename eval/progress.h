#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tessera {

// Progress bar on the last line of a terminal. Prints nothing if stderr is not a terminal.
class Progress {
 public:
  explicit Progress(int64_t total_tokens);
  ~Progress();  // erases the bar

  void advance(std::string_view task, std::string_view subject, int64_t tokens);

 private:
  void draw(std::string_view task, std::string_view subject);

  const int64_t total_;
  const bool shown_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  int64_t done_ = 0;
};

}  // namespace tessera
