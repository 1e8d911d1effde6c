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

// Running Generate calls by name, which is the request_id of the API. Thread-safe.
class CallTable {
 public:
  // Registers a call under `name`, or under a new name if `name` is empty.
  // Returns: the name.
  // Errors: InvalidArgument if the name is too long, AlreadyExists if a call of that name is
  // running.
  absl::StatusOr<std::string> add(const std::string& name, std::weak_ptr<GenerateCall> call);

  // Releases the name. The call still counts as open until close().
  void remove(const std::string& name);

  // Returns: the call of that name, or null.
  std::shared_ptr<GenerateCall> find(const std::string& name) const;

  // Number of open calls, named or not. The wait returns false if `timeout` passed first.
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
