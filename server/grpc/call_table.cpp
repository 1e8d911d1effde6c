#include "server/grpc/call_table.h"

#include <fmt/format.h>

#include <utility>

#include "server/base/unique_id.h"
#include "server/request/request_limits.h"

namespace tessera {

absl::StatusOr<std::string> CallTable::add(int32_t tenant, const std::string& name,
                                           std::weak_ptr<GenerateCall> call) {
  if (name.size() > kMaxRequestId) {
    return absl::InvalidArgumentError(
        fmt::format("request_id has {} bytes, at most {} may be", name.size(), kMaxRequestId));
  }
  const std::lock_guard lock(mutex_);
  std::string chosen = name.empty() ? fmt::format("generate-{:x}", unique_number()) : name;
  if (!calls_.emplace(std::pair(tenant, chosen), std::move(call)).second) {
    return absl::AlreadyExistsError(
        fmt::format("request_id: a generation named '{}' is still running", chosen));
  }
  return chosen;
}

void CallTable::remove(int32_t tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  calls_.erase({tenant, name});
}

std::shared_ptr<GenerateCall> CallTable::find(int32_t tenant, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(std::pair(tenant, name));
  return found == calls_.end() ? nullptr : found->second.lock();
}

void CallTable::open() {
  const std::lock_guard lock(mutex_);
  ++open_;
}

void CallTable::close() {
  const std::lock_guard lock(mutex_);
  --open_;
  closed_.notify_all();
}

bool CallTable::wait_until_none_is_open(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return closed_.wait_for(lock, timeout, [this] { return open_ == 0; });
}

}  // namespace tessera
