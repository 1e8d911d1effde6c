#include "engine/sequence.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/kv/kv_shareable.h"
#include "models/lora/adapter.h"

namespace tessera {
namespace {

size_t max_length(const EngineRequest& request, int32_t context) {
  const size_t prompt = request.prompt.size();
  return request.forced.empty() ? std::min(prompt + static_cast<size_t>(request.max_tokens),
                                           static_cast<size_t>(context))
                                : prompt + request.forced.size();
}

uint64_t bits_of(const KvPolicy& policy) {
  const KvFormat format = policy.high;
  const uint64_t section =
      policy.replays() ? std::bit_cast<uint32_t>(policy.budget().amount.share()) : 0;
  return (section * 0x9e3779b97f4a7c15) ^
         (uint64_t{format.e4m3} << 49 | uint64_t{format.rotated} << 48 |
          uint64_t{format.key_keep} << 32 | uint64_t{format.value_keep} << 16 |
          static_cast<uint64_t>(format.key_bits << 8 | format.value_bits));
}

// Salts of clients are UTF-8, in which no text begins with this byte.
constexpr char kAdapterSalt = '\xff';

// Keys and values depend on the adapter, so its prefixes are its own.
std::string salt_of(const EngineRequest& request) {
  return request.adapter == nullptr
             ? request.cache_salt
             : kAdapterSalt + request.adapter->fingerprint() + request.cache_salt;
}

}  // namespace

std::shared_ptr<const Sequence::Shared> Sequence::share(const EngineRequest& request,
                                                        const Model& model) {
  auto shared = std::make_shared<Shared>(Shared{request.stop_ids, request.forced, salt_of(request),
                                                request.adapter, request.kept, request.transfer});
  std::vector<int32_t>& ids = shared->stop_ids;
  if (!request.ignore_eos) {
    ids.insert(ids.end(), model.eos_ids.begin(), model.eos_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return shared;
}

Sequence::Sequence(RequestId request_id, size_t sample, const EngineRequest& request,
                   std::shared_ptr<const Shared> shared, const Model& model)
    : request_id_(request_id),
      id_(request_id + sample),
      order_(order_of(request.priority, static_cast<int64_t>(request_id))),
      priority_(request.priority),
      tenant_(request.tenant),
      prompt_tokens_(request.prompt.size()),
      shareable_(request.sinks.size() > 1 ? static_cast<int32_t>(prompt_tokens_) - 1 : 0),
      max_length_(max_length(request, model.context)),
      known_(prompt_tokens_),
      shared_(std::move(shared)),
      sampling_(request.sampling),
      speculates_(request.speculation),
      constrained_(request.grammar != nullptr),
      constraint_(constrained_ ? request.grammar->begin() : nullptr),
      observe_logits_(request.observe_logits),
      deadline_(request.deadline),
      start_by_(request.start_by),
      sink_(request.sinks[sample]),
      kv_(request.kv.value_or(model.kv)),
      kv_floor_(request.deterministic ? 1 : request.kv_floor.value_or(model.kv_floor)),
      cache_(request.cache),
      cache_accept_(request.cache_accept.value_or(model.cache_accept)),
      accepts_sections_(!request.cache_accept.has_value() && !request.deterministic &&
                        !kv_.policy.is_lossy() && !kv_.policy.one_by_one()),
      submitted_(model.now),
      pool_(request.pooling.has_value()
                ? std::optional<HiddenPool>(std::in_place, *request.pooling,
                                            static_cast<int32_t>(prompt_tokens_), model.hidden)
                : std::nullopt) {
  TESSERA_CHECK(prompt_tokens_ > 0 && prompt_tokens_ <= max_length_ &&
                    std::cmp_less_equal(max_length_, model.context),
                "a sequence has a prompt and fits the context");
  if (kv_.policy.is_lossy()) {
    // Shared tokens cannot be compressed, and a sample's text must not depend on which are shared.
    shareable_ = 0;
  }
  const auto prompt = static_cast<int32_t>(prompt_tokens_);
  if (kv_.policy.newest_dense() > 0) {
    // Each sample needs the end of the prompt in its own residual buffer.
    shareable_ = std::min(shareable_, shareable_tokens(kv_.policy, prompt) / kKvGroup * kKvGroup);
  }
  if (kv_.policy.one_by_one()) {
    // Generated tokens read other inputs than prompt tokens do.
    max_inserted_tokens_ = prompt;
  }
  if (kv_.policy.is_lossy() || request.deterministic) {
    cache_accept_ = kv_.policy.high;
    cache_.use = cache_.use && !(kv_.policy.is_private() && request.deterministic);
  }
  if (kv_.policy.is_private()) {
    max_inserted_tokens_ = cache_.pin ? static_cast<int32_t>(prompt_tokens_) : 0;
  }
  const size_t groups = max_length_ / kKvGroup;  // a prefix block has at least one
  block_hashes_.reserve(groups);
  path_hashes_.reserve(groups);
  sampling_.seed += sample;
  tokens_.reserve(max_length_);
  tokens_ = request.prompt;
  unpublished_.resize(may_draft() ? kMostDrafted + 1 : 1);
  for (Unpublished& token : unpublished_) {
    token.top.reserve(static_cast<size_t>(sampling_.top_logprobs.value_or(0)));
  }
}

Candidate Sequence::candidate() const {
  return {.turn = {.tenant = tenant_.id,
                   .share = tenant_.share,
                   .clock = clock_,
                   .slots_held = slots_held_,
                   .start = start_,
                   .order = order_,
                   .priority = priority_},
          .tokens = static_cast<int32_t>(known_),
          .stored = stored(),
          .drafted = static_cast<int32_t>(drafted().size()),
          .running = running() != nullptr,
          .request = static_cast<int64_t>(request_id_),
          .shareable = shareable_,
          .one_by_one = kv_.policy.one_by_one() ? static_cast<int32_t>(prompt_tokens_)
                                                : std::numeric_limits<int32_t>::max()};
}

KvPrompt Sequence::cache_prompt(int32_t prefix_block_tokens) {
  const auto block = static_cast<size_t>(prefix_block_tokens);
  while ((block_hashes_.size() + 1) * block <= known_) {
    const uint64_t before =
        path_hashes_.empty() ? std::hash<std::string>()(shared_->cache_salt) ^ bits_of(kv_.policy)
                             : path_hashes_.back();
    block_hashes_.push_back(
        PrefixTree::hash(tokens().subspan(block_hashes_.size() * block, block)));
    path_hashes_.push_back((before ^ block_hashes_.back()) * 0x9e3779b97f4a7c15 + before);
  }
  return {tokens(), block_hashes_, shared_->cache_salt, kv_.policy.high, cache_accept_};
}

int32_t Sequence::max_cached_tokens() const {
  const bool observes = observe_logits_ || sampling_.prompt_logprobs.has_value();
  const int32_t first_unobserved =
      std::min(observes ? next_observed_ : std::numeric_limits<int32_t>::max(),
               pool_.has_value() ? pool_->first_wanted() : std::numeric_limits<int32_t>::max());
  return kv_.policy.is_private() || kv_.policy.one_by_one()
             ? std::min(first_unobserved,
                        shareable_tokens(kv_.policy, static_cast<int32_t>(prompt_tokens_)))
             : first_unobserved;
}

void Sequence::mark_recurring(int32_t tokens) {
  // Tokens that another sequence with this prompt could not match are left to the policy.
  const int32_t useful = shareable_tokens(kv_.policy, static_cast<int32_t>(prompt_tokens_));
  max_inserted_tokens_ = std::max(max_inserted_tokens_, std::min(tokens, useful));
}

void Sequence::set_cached_tokens(int32_t tokens) {
  store(tokens);
  cached_tokens_ = cached_tokens_.value_or(tokens);
}

std::optional<int32_t> Sequence::forced() const {
  return shared_->forced.empty() ? std::nullopt
                                 : std::optional(shared_->forced[generated().size()]);
}

bool Sequence::overdue(std::chrono::steady_clock::time_point now) const {
  return deadline_.has_value() && *deadline_ <= now;
}

bool Sequence::waited_too_long(std::chrono::steady_clock::time_point now) const {
  return start_by_.has_value() && !admitted_.has_value() && *start_by_ <= now;
}

int32_t Sequence::stored() const {
  if (const Running* running = this->running()) {
    return running->stored;
  }
  const SwappedOut* swapped = swapped_out();
  return swapped != nullptr ? swapped->stored : 0;
}

void Sequence::admit(KvSlot slot, std::chrono::steady_clock::time_point now) {
  TESSERA_CHECK(running() == nullptr && !ended(), "only a waiting sequence is admitted");
  admitted_ = admitted_.value_or(now);
  state_ = Running{std::move(slot), stored()};
}

// Requires: the caller sets the next state at once, so no empty handle stays behind.
KvSlot Sequence::take_slot() {
  Running* running = std::get_if<Running>(&state_);
  TESSERA_CHECK(running != nullptr, "a sequence without a slot releases one");
  return std::move(running->slot);
}

KvSlot Sequence::preempt() {
  KvSlot slot = take_slot();
  state_ = Waiting{};
  return slot;
}

KvSlot Sequence::preempt(SwappedKv swapped) {
  KvSlot slot = take_slot();
  kv_usage_ = swapped.usage();
  state_ = SwappedOut{std::move(swapped), stored()};
  return slot;
}

KvSlot Sequence::finish(const KvUsage& usage) {
  TESSERA_CHECK(ended(), "a sequence finishes after its end");
  KvSlot slot = take_slot();
  kv_usage_ = usage;
  state_ = Finished{};
  return slot;
}

void Sequence::store(int32_t count) {
  Running* running = std::get_if<Running>(&state_);
  TESSERA_CHECK(running != nullptr, "a sequence without a slot stores tokens");
  running->stored += count;
  TESSERA_CHECK(std::cmp_less_equal(running->stored, tokens_.size()),
                "more tokens are stored than are known or drafted");
}

bool Sequence::may_draft() const {
  return speculates_ && shared_->forced.empty() && !observe_logits_ && !pool_.has_value() &&
         !kv_.policy.is_private() && !kv_.policy.one_by_one();
}

void Sequence::draft(int32_t most) {
  tokens_.resize(known_);
  refused_ = false;
  drafted_by_model_ = false;
  int32_t drafted[kMostDrafted];
  const int32_t wanted = std::clamp(std::min(most, most_drafted()), 0, kMostDrafted);
  const int32_t count =
      draft_.guess(tokens_, std::span(drafted).first(static_cast<size_t>(wanted)));
  tokens_.insert(tokens_.end(), drafted, drafted + count);
}

int32_t Sequence::wish_for_draft(float step_cost) {
  const int32_t wanted = length_of_model_.choose(step_cost);
  if (wanted == 0) {
    length_of_model_.rest();
  }
  return wanted;
}

void Sequence::take_draft(std::span<const int32_t> drafted) {
  TESSERA_CHECK(tokens_.size() == known_ && std::ssize(drafted) <= std::max(0, most_drafted()),
                "a draft in the place of another, or behind the end");
  tokens_.insert(tokens_.end(), drafted.begin(), drafted.end());
  drafted_by_model_ = true;
}

int32_t Sequence::settle_draft(int32_t drafted) {
  Running* running = std::get_if<Running>(&state_);
  TESSERA_CHECK(running != nullptr && drafted > 0, "a running sequence settles its draft");
  // The newest token is not stored, unless the step chose none that is kept.
  const bool kept_none =
      ended() && (finish_->reason == FinishReason::stop || finish_->reason == FinishReason::failed);
  const int32_t right = static_cast<int32_t>(known_) - (kept_none ? 0 : 1);
  const int32_t accepted = drafted - (running->stored - right);
  running->stored = right;
  tokens_.resize(known_);
  if (drafted_by_model_) {
    length_of_model_.learn(drafted, accepted);
  } else {
    draft_.learn(drafted, accepted);
  }
  return accepted;
}

bool Sequence::observes(int32_t position) const {
  return position >= next_observed_ && (observe_logits_ || observes_prompt_logprobs(position));
}

bool Sequence::observes_prompt_logprobs(int32_t position) const {
  return position >= next_observed_ && sampling_.prompt_logprobs.has_value() &&
         std::cmp_less(position + 1, prompt_tokens_);
}

void Sequence::observe(int32_t position, std::span<const float> logits,
                       const TokenLogprobs& prompt_logprobs) {
  TESSERA_CHECK(position >= next_observed_, "a sink receives each position once");
  const bool of_prompt = observes_prompt_logprobs(position);
  next_observed_ = position + 1;
  if (observe_logits_) {
    sink_->on_logits(position, logits);
  }
  if (of_prompt) {
    sink_->on_prompt_logprobs(prompt_logprobs);
  }
}

void Sequence::pool(int32_t position, std::span<const float> hidden) {
  pool_->add(position, hidden);
  if (pool_->complete()) {
    sink_->on_embedding(pool_->embedding());
  }
}

bool Sequence::append(const Sampled& next) {
  TESSERA_CHECK(std::cmp_greater_equal(stored(), known_), "a token is chosen after all are stored");
  if (shared_->forced.empty() &&
      std::binary_search(stop_ids().begin(), stop_ids().end(), next.token)) {
    end(FinishReason::stop);
    finish_->stop_token = next.token;
    return false;
  }
  refused_ = !drafted().empty() && drafted().front() != next.token;
  if (drafted().empty() || refused_) {
    tokens_.resize(known_);
    tokens_.push_back(next.token);
  }
  ++known_;
  if (constraint_ != nullptr) {
    constraint_->accept(next.token);
  }
  Unpublished& unpublished = unpublished_[unpublished_tokens_++];
  unpublished.token = next.token;
  unpublished.logprob = next.logprobs.chosen;
  unpublished.rank = next.logprobs.rank;
  unpublished.top.assign(next.logprobs.top.begin(), next.logprobs.top.end());
  if (full()) {
    end(FinishReason::length);
  }
  return true;
}

void Sequence::end(FinishReason reason, absl::Status status) {
  TESSERA_CHECK(!ended(), "a sequence ends once");
  finish_ = Finish{.reason = reason,
                   .status = std::move(status),
                   .prompt_tokens = static_cast<int32_t>(prompt_tokens_),
                   .cached_tokens = cached_tokens_.value_or(0),
                   .completion_tokens = static_cast<int32_t>(generated().size())};
  if (running() == nullptr) {
    state_ = Finished{};
  }
}

void Sequence::publish(std::chrono::steady_clock::time_point now) {
  if (!told_ && (unpublished_tokens_ > 0 || ended())) {
    in_cache_.cached_tokens = cached_tokens_.value_or(0);
    sink_->on_prompt_in_cache(in_cache_);
    told_ = true;
  }
  if (unpublished_tokens_ > 0) {
    prefill_time_ = prefill_time_.value_or(now - *admitted_);
  }
  for (const Unpublished& next : std::span(unpublished_).first(unpublished_tokens_)) {
    if (sampling_.top_logprobs.has_value()) {
      sink_->on_logprobs({next.logprob, next.top, next.rank});
    }
    sink_->on_token(next.token);
  }
  unpublished_tokens_ = 0;
  if (ended()) {
    finish_->kv = {.preset = kv_, .usage = kv_usage_};
    finish_->prefill_time = prefill_time_;
    if (admitted_.has_value()) {
      finish_->queue_time = *admitted_ - submitted_;
    }
    sink_->on_finish(*finish_);
  }
}

}  // namespace tessera
