#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tessera {

class GenerateCall;

// Running Generate calls by tenant and name, which is the request_id of the API. Thread-safe.
class CallTable {
 public:
  // Registers a call under `name`, or under a new name if `name` is empty.
  // Returns: the name.
  // Errors: InvalidArgument if the name is too long, AlreadyExists if a call of that name is
  // running.
  absl::StatusOr<std::string> add(int32_t tenant, const std::string& name,
                                  std::weak_ptr<GenerateCall> call);

  // Releases the name. The call still counts as open until close().
  void remove(int32_t tenant, const std::string& name);

  // Returns: the tenant's call of that name, or null.
  std::shared_ptr<GenerateCall> find(int32_t tenant, const std::string& name) const;

  // Number of open calls, named or not. The wait returns false if `timeout` passed first.
  void open();
  void close();
  bool wait_until_none_is_open(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  // All guarded by mutex_.
  std::map<std::pair<int32_t, std::string>, std::weak_ptr<GenerateCall>> calls_;
  std::size_t open_ = 0;
};

}  // namespace tessera
