#include "server/grpc/call_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/unique_id.h"
#include "server/request/request_limits.h"

namespace tessera {

absl::StatusOr<std::string> CallTable::add(int32_t tenant, const std::string& name,
                                           std::weak_ptr<GenerateCall> call) {
  if (name.size() > kMaxRequestId) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has ", name.size(), " bytes, at most ", kMaxRequestId, " may be"));
  }
  const std::lock_guard lock(mutex_);
  std::string chosen = name.empty() ? absl::StrCat("generate-", absl::Hex(unique_number())) : name;
  if (!calls_.emplace(std::pair(tenant, chosen), std::move(call)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id: a generation named '", chosen, "' is still running"));
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
