#include "eval/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"

namespace tessera {
namespace {

constexpr int64_t kWidth = 30;
constexpr std::chrono::milliseconds kBetweenDrawings{100};
constexpr char kWipe[] = "\r\x1b[K";

}  // namespace

Progress::Progress(int64_t total_tokens)
    : total_(std::max<int64_t>(total_tokens, 1)),
      shown_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (shown_) {
    std::fputs(kWipe, stderr);
  }
}

void Progress::advance(std::string_view task, std::string_view subject, int64_t tokens) {
  done_ = std::min(done_ + tokens, total_);
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - drawn_ >= kBetweenDrawings) {
    drawn_ = now;
    draw(task, subject);
  }
}

void Progress::draw(std::string_view task, std::string_view subject) {
  const int64_t filled = kWidth * done_ / total_;
  const std::chrono::duration<double> passed = drawn_ - start_;
  const double left =
      done_ > 0 ? passed.count() * static_cast<double>(total_ - done_) / static_cast<double>(done_)
                : 0;
  const std::string line = absl::StrFormat("%s[%s%s] %3d %%  %.0f s left  %s, %s", kWipe,
                                           std::string(static_cast<size_t>(filled), '#'),
                                           std::string(static_cast<size_t>(kWidth - filled), '.'),
                                           100 * done_ / total_, left, task, subject);
  std::fputs(line.c_str(), stderr);
}

}  // namespace tessera
