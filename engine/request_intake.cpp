#include "engine/request_intake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status check_ids(const char* field, const std::vector<int32_t>& ids, int32_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is ", ids[i], ", the vocabulary has ", vocab, " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_deterministic(bool deterministic, const KvPolicy& policy) {
  return deterministic && policy.selects()
             ? absl::InvalidArgumentError(absl::StrCat(
                   "deterministic cannot be combined with read_share ", policy.all().read_share,
                   " of the KV cache, by which generated tokens read a part of the pages: ask for "
                   "read_share 1"))
             : absl::OkStatus();
}

// Checks the number of tokens. The arena holds at least one whole context, so a request that fits
// the context can run.
absl::Status check_room(const EngineRequest& request, int32_t context) {
  const size_t prompt = request.prompt.size();
  if (!request.forced.empty()) {
    return std::cmp_less_equal(prompt + request.forced.size(), context)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("the prompt has ", prompt, " tokens and ", request.forced.size(),
                                  " are forced to follow, the context holds ", context));
  }
  if (fits_context(static_cast<int64_t>(prompt), request.max_tokens, context)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the prompt has ", prompt,
                   request.max_tokens == 0 ? " tokens, " : " tokens; with at least one more, ",
                   "the context holds ", context));
}

}  // namespace

RequestIntake::RequestIntake(const EngineOptions& options, const ModelConfig& config,
                             const KvCache& kv, Ranks& ranks)
    : options_(options),
      config_(config),
      kv_(kv),
      ranks_(ranks),
      queue_(options.max_queue, options.max_sequences) {}

absl::StatusOr<RequestId> RequestIntake::submit(EngineRequest request) {
  TESSERA_CHECK(!request.sinks.empty() &&
                    std::count(request.sinks.begin(), request.sinks.end(), nullptr) == 0,
                "a request has at least one sink, and no null sink");
  TESSERA_CHECK(!request.pooling.has_value() || request.sinks.size() == 1,
                "an embedding has one sink");
  TESSERA_CHECK(request.kept.size() <= kMaxKeptPrefixes, "a request keeps few prefixes");
  TESSERA_RETURN_IF_ERROR(check(request));
  const RequestId first_id = last_id_.fetch_add(request.sinks.size()) + 1;
  Message message{.samples = make_samples(first_id, request)};
  if (ranks_.count() > 1) {
    message.request = std::make_unique<EngineRequest>(std::move(request));
  }
  TESSERA_RETURN_IF_ERROR(queue_.push(std::move(message), options_.clock()));
  return first_id;
}

absl::Status RequestIntake::check(const EngineRequest& request) const {
  const int32_t vocab = config_.vocab;
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty");
  }
  if (std::cmp_greater(request.sinks.size(), options_.max_queue)) {
    return absl::InvalidArgumentError(absl::StrCat("the request has ", request.sinks.size(),
                                                   " samples, the queue takes ",
                                                   options_.max_queue));
  }
  if (request.grammar != nullptr && request.ignore_eos) {
    return absl::InvalidArgumentError(
        "ignore_eos cannot be combined with a grammar, which ends the text");
  }
  for (const absl::Status& status :
       {check_option({"max_tokens", kTokenCount}, request.max_tokens),
        check_room(request, options_.context), check_ids("prompt", request.prompt, vocab),
        check_ids("stop_ids", request.stop_ids, vocab), check_ids("forced", request.forced, vocab),
        check_sampling(request.sampling, vocab),
        check_option({"kv_floor", kKvFloor}, request.kv_floor.value_or(1.0f)),
        request.kv.has_value() ? kv_.check(request.kv->policy) : absl::OkStatus(),
        check_adapter(request),
        check_deterministic(request.deterministic, request.kv.value_or(options_.kv).policy),
        request.cache_accept.has_value() ? kv_.check_accepted(*request.cache_accept)
                                         : absl::OkStatus()}) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

// A background replay computes blocks without their requests, so without their adapters.
absl::Status RequestIntake::check_adapter(const EngineRequest& request) const {
  if (request.adapter == nullptr) return absl::OkStatus();
  if (ranks_.count() > 1) {
    return absl::UnimplementedError("several ranks serve no adapters (LoRA)");
  }
  return options_.kv_section_step.has_value()
             ? absl::UnimplementedError(
                   absl::StrCat("adapters (LoRA) cannot be combined with the ladder ",
                                options_.kv_section_step->name))
             : absl::OkStatus();
}

std::vector<std::unique_ptr<Sequence>> RequestIntake::make_samples(
    RequestId first_id, const EngineRequest& request) const {
  const KvFormat accept =
      options_.kv_ladder->empty() ? options_.kv.policy.high : options_.kv_ladder->back();
  const SequenceDefaults defaults{options_.context,  config_.eos_ids,  options_.kv,   accept,
                                  options_.kv_floor, options_.clock(), config_.hidden};
  const auto shared = SequenceRequest::of(request, defaults);
  std::vector<std::unique_ptr<Sequence>> samples;
  for (size_t i = 0; i < request.sinks.size(); ++i) {
    samples.push_back(std::make_unique<Sequence>(first_id, i, request, shared, defaults));
  }
  return samples;
}

// closed() is read before receive(). No message enters a closed queue, so the last receive()
// returns all messages.
void RequestIntake::receive(StepInputs& inputs) {
  inputs.messages.clear();
  if (ranks_.leads()) {
    inputs.ends = queue_.closed();
    inputs.now = options_.clock();
    queue_.receive(inputs.messages);
  }
  ranks_.broadcast(inputs);
  for (Message& message : inputs.messages) {
    if (!ranks_.leads() && message.request != nullptr) {
      message.samples = make_samples(message.first_id, *message.request);
    }
    message.request.reset();
  }
}

}  // namespace tessera
