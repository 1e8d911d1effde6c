#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"

namespace tessera {

class GenerateCall;

// The generations that run, by the name their client knows. Any thread may call any method.
class CallTable {
 public:
  // Names a generation: `name`, or a new one when it is empty. Errors: InvalidArgument (too long),
  // AlreadyExists (one of that name runs).
  absl::StatusOr<std::string> add(const std::string& name, std::weak_ptr<GenerateCall> call);

  // The name is free again. The call still counts as open until close().
  void remove(const std::string& name);

  // Null: there is none of that name.
  std::shared_ptr<GenerateCall> find(const std::string& name) const;

  // Calls that are open, named or not.
  void open();
  void close();
  bool wait_until_none_is_open(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  std::unordered_map<std::string, std::weak_ptr<GenerateCall>> calls_;  // guarded by mutex_
  std::size_t open_ = 0;                                                // guarded by mutex_
  std::mt19937_64 names_{std::random_device{}()};                       // guarded by mutex_
};

}  // namespace tessera
