#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tessera {

// A bar on the last line of a terminal; silent where stderr is none.
class Progress {
 public:
  explicit Progress(int64_t total_tokens);
  ~Progress();  // wipes the bar away

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
