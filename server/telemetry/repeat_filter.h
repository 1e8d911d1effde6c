#pragma once

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace tessera {

// Limits lines of a log that repeat: of lines that differ in digits only, `burst` pass in each
// `window`. The next line that passes tells how many were left out. Lines below warning are never
// limited. Bounded memory: lines whose hashes meet in the table share a limit.
class RepeatFilter final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  RepeatFilter(std::shared_ptr<spdlog::sinks::sink> next, int burst, std::chrono::seconds window)
      : next_(std::move(next)), burst_(burst), window_(window) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level < spdlog::level::warn) {
      next_->log(message);
      return;
    }
    Entry& entry = entries_[hash_of(message) % entries_.size()];
    if (message.time - entry.begin >= window_) {
      const int64_t left_out = std::exchange(entry.left_out, 0);
      entry.begin = message.time;
      entry.passed = 0;
      if (left_out > 0) {
        const std::string text =
            fmt::format("{} (and {} more like this since the last)",
                        std::string_view(message.payload.data(), message.payload.size()), left_out);
        spdlog::details::log_msg told = message;
        told.payload = text;
        ++entry.passed;
        next_->log(told);
        return;
      }
    }
    if (entry.passed == burst_) {
      ++entry.left_out;
      return;
    }
    ++entry.passed;
    next_->log(message);
  }
  void flush_() override { next_->flush(); }
  void set_pattern_(const std::string& pattern) override { next_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    next_->set_formatter(std::move(formatter));
  }

 private:
  struct Entry {
    spdlog::log_clock::time_point begin;
    int passed = 0;
    int64_t left_out = 0;
  };

  // FNV-1a without the digits.
  static uint64_t hash_of(const spdlog::details::log_msg& message) {
    uint64_t hash = 0xcbf29ce484222325 + static_cast<uint64_t>(message.level);
    for (const char c : message.payload) {
      if (c < '0' || c > '9') {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
      }
    }
    return hash;
  }

  const std::shared_ptr<spdlog::sinks::sink> next_;
  const int burst_;
  const std::chrono::seconds window_;
  std::array<Entry, 256> entries_ = {};
};

}  // namespace tessera
