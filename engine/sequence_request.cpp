#include "engine/sequence_request.h"

#include <algorithm>
#include <utility>

#include "engine/kv/kv_shareable.h"
#include "models/lora/adapter.h"

namespace tessera {
namespace {

// Salts of clients are UTF-8, in which no text begins with this byte.
constexpr char kAdapterSalt = '\xff';

// Keys and values depend on the adapter, so its prefixes are its own.
std::string salt_of(const EngineRequest& request) {
  return request.adapter == nullptr
             ? request.cache_salt
             : kAdapterSalt + request.adapter->fingerprint() + request.cache_salt;
}

std::vector<int32_t> stop_ids_of(const EngineRequest& request, std::span<const int32_t> eos_ids) {
  std::vector<int32_t> ids = request.stop_ids;
  if (!request.ignore_eos) {
    ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

int32_t shareable_of(const EngineRequest& request, const KvPolicy& policy) {
  // Tokens that are shared cannot be compressed, and a sample's text must not depend on which are.
  if (request.sinks.size() == 1 || policy.is_lossy()) {
    return 0;
  }
  const auto prompt = static_cast<int32_t>(request.prompt.size());
  // Each sample needs the end of the prompt in its own residual buffer.
  return policy.newest_dense() > 0
             ? std::min(prompt - 1, shareable_tokens(policy, prompt) / kKvGroup * kKvGroup)
             : prompt - 1;
}

SequenceRequest::Cache cache_of(const EngineRequest& request, const KvPolicy& policy,
                                const SequenceDefaults& defaults) {
  const bool exact = policy.is_lossy() || request.deterministic;
  SequenceRequest::Cache cache{
      request.cache,
      exact ? policy.high : request.cache_accept.value_or(defaults.cache_accept),
      !request.cache_accept.has_value() && !exact && !policy.one_by_one(),
      salt_of(request),
      request.kept,
      request.transfer};
  cache.use = cache.use && !(policy.is_private() && request.deterministic);
  return cache;
}

}  // namespace

std::shared_ptr<const SequenceRequest> SequenceRequest::of(const EngineRequest& request,
                                                           const SequenceDefaults& defaults) {
  const KvPreset kv = request.kv.value_or(defaults.kv);
  const KvPolicy& policy = kv.policy;
  return std::make_shared<const SequenceRequest>(SequenceRequest{
      .stop_ids = stop_ids_of(request, defaults.eos_ids),
      .forced = request.forced,
      .adapter = request.adapter,
      .constrained = request.grammar != nullptr,
      .may_draft = request.speculation && request.forced.empty() && !request.observe_logits &&
                   !request.pooling.has_value() && !policy.is_private() && !policy.one_by_one(),
      .shareable = shareable_of(request, policy),
      .kv = kv,
      .kv_floor = request.deterministic ? 1 : request.kv_floor.value_or(defaults.kv_floor),
      .cache = cache_of(request, policy, defaults),
      .submitted = defaults.now,
      .deadline = request.deadline,
      .start_by = request.start_by});
}

std::optional<SequenceRequest::Time> SequenceRequest::latest_start() const {
  return start_by.has_value() && deadline.has_value() ? std::min(start_by, deadline)
         : start_by.has_value()                       ? start_by
                                                      : deadline;
}

absl::Status SequenceRequest::check_time(Time now, bool was_admitted) const {
  if (deadline.has_value() && *deadline <= now) {
    return absl::DeadlineExceededError("the request's deadline has passed");
  }
  if (start_by.has_value() && *start_by <= now && !was_admitted) {
    return absl::ResourceExhaustedError(
        "the request has waited for its turn as long as its queue timeout allows");
  }
  return absl::OkStatus();
}

}  // namespace tessera
