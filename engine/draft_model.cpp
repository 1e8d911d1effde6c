#include "engine/draft_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/ops/sampling.h"
#include "models/architectures/rope_config.h"

namespace tessera {
namespace {

// A sequence is not caught up with for an answer that is so many times shorter than what it takes.
constexpr int32_t kWorthwhile = 8;

int32_t sequences_of(const EngineOptions& options) {
  return std::min(options.max_sequences, DraftModel::kSequences);
}

// Returns: number of first tokens that both have.
int32_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

StepLimits DraftModel::limits(const EngineOptions& options) {
  return {.tokens = kStepTokens, .sequences = sequences_of(options), .context = options.context};
}

KvCacheOptions DraftModel::cache_options(const EngineOptions& options, const ModelConfig& model,
                                         const Backend& backend) {
  EngineOptions own;
  own.kv = uniform_kv(kKvK8V8);
  own.kv_ladder = std::vector<KvFormat>{};
  own.prefix_cache = false;
  own.max_sequences = sequences_of(options);
  own.context = options.context;
  KvCacheOptions cache = kv_cache_options(own, model, backend);
  const absl::StatusOr<KvArenaShape> whole = shape_of(cache);
  if (whole.ok()) {  // else KvCache::create() names the error
    const int64_t slots = whole->slots * whole->slot_bytes();
    cache.bytes = slots + (whole->total_bytes() - slots) / whole->slots;
  }
  return cache;
}

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::create(const EngineOptions& options,
                                                               std::unique_ptr<Transformer> model,
                                                               const Transformer& first,
                                                               const Backend& backend,
                                                               Stream stream) {
  if (backend.memory != nullptr) {
    return absl::UnimplementedError("the draft model serves the CPU");
  }
  if (const int32_t longest = longest_context(model->config()); longest < options.context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the draft model was made for ", longest, " tokens, and the context is ", options.context));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<KvCache> kv,
      KvCache::create(cache_options(options, model->config(), backend), backend, stream));
  TESSERA_ASSIGN_OR_RETURN(
      AlignedMemory logits,
      AlignedMemory::allocate(int64_t{kSequences} * model->config().vocab * int64_t{sizeof(float)},
                              backend));
  return std::unique_ptr<DraftModel>(
      new DraftModel(options, std::move(model), std::move(kv), std::move(logits), first, stream));
}

DraftModel::DraftModel(const EngineOptions& options, std::unique_ptr<Transformer> model,
                       std::unique_ptr<KvCache> kv, AlignedMemory logits, const Transformer& first,
                       Stream stream)
    : model_(std::move(model)),
      kv_(std::move(kv)),
      logits_memory_(std::move(logits)),
      step_cost_(options.draft_step_cost > 0
                     ? options.draft_step_cost
                     : static_cast<float>(model_->weight_bytes()) /
                           static_cast<float>(std::max<int64_t>(1, first.weight_bytes()))),
      stream_(stream),
      vocab_(std::min(model_->config().vocab, first.config().vocab)),
      known_(static_cast<size_t>(kv_->shape().slots)),
      mask_(static_cast<size_t>(mask_words(first.config().vocab))) {
  active_.reserve(known_.size());
  reservations_.reserve(known_.size());
  slots_.reserve(known_.size());
  spans_.reserve(known_.size());
  rows_.reserve(known_.size());
  tokens_.reserve(kStepTokens);
  positions_.reserve(kStepTokens);
}

int64_t DraftModel::bytes() const {
  return model_->weight_bytes() + model_->workspace_bytes() + kv_->shape().total_bytes();
}

void DraftModel::draft(std::span<DraftWish> wishes) {
  ++calls_;
  active_.clear();
  int32_t room = kStepTokens;
  for (DraftWish& wish : wishes) {
    room -= admit(wish, room);
  }
  while (!active_.empty()) {
    compute();
    choose();
  }
}

// Returns: tokens of the sequence that the next step computes, at most `room`.
int32_t DraftModel::admit(DraftWish& wish, int32_t room) {
  const auto known_tokens = static_cast<int32_t>(wish.tokens.size());
  if (room == 0 || wish.most == 0) return 0;
  Known& known = find_or_open(wish.id);
  if (known.stored > known.first_drafted) {
    const auto first = static_cast<size_t>(known.first_drafted);
    const auto count = static_cast<size_t>(known.stored - known.first_drafted);
    const int32_t right = common_tokens(wish.tokens.subspan(std::min(first, wish.tokens.size())),
                                        std::span(known.drafted).first(count));
    known.stored = known.first_drafted + right;
    kv_->truncate(*known.slot, known.stored);
  }
  // The last token is computed again if it is stored: its logits are needed.
  if (known.stored == known_tokens) {
    kv_->truncate(*known.slot, --known.stored);
  }
  known.first_drafted = known_tokens;
  const int32_t missing = known_tokens - known.stored;
  const auto beyond = [this](int32_t token) { return token >= vocab_; };
  if (missing / kWorthwhile > wish.left ||
      std::ranges::any_of(wish.tokens.last(static_cast<size_t>(missing)), beyond)) {
    return 0;
  }
  const KvDemand demand = kv_->planning().demand(*known.slot);
  const int32_t count = std::min({missing, room, demand.run_limit(known.stored)});
  if (!make_room(known, count)) return 0;
  active_.push_back({&wish, &known, count});
  return count;
}

// Returns: the place of a sequence, which may be new.
DraftModel::Known& DraftModel::find_or_open(RequestId id) {
  const auto is_this = [id](const Known& known) {
    return known.slot.has_value() && known.id == id;
  };
  auto found = std::ranges::find_if(known_, is_this);
  if (found == known_.end()) {
    found =
        std::ranges::find_if(known_, [](const Known& known) { return !known.slot.has_value(); });
    if (found == known_.end()) {
      found = known_.begin() + (least_recent() - known_.data());
      release(*found);
    }
    *found = {.id = id, .slot = kv_->open_slot()};
  }
  found->used = calls_;
  return *found;
}

// Returns: the sequence that was drafted for the longest time ago, before this call; null: none.
DraftModel::Known* DraftModel::least_recent() {
  Known* least = nullptr;
  for (Known& known : known_) {
    if (known.slot.has_value() && known.used < calls_ &&
        (least == nullptr || known.used < least->used)) {
      least = &known;
    }
  }
  return least;
}

void DraftModel::release(Known& known) {
  kv_->release(*std::move(known.slot));
  known.slot.reset();
}

// Forgets other sequences until there are pages for the next tokens of one.
// Returns: false if pages lack nevertheless.
bool DraftModel::make_room(const Known& known, int32_t tokens) {
  const int64_t needed = kv_->planning().demand(*known.slot).growth(known.stored, tokens);
  const auto taken = [this] {
    int64_t pages = 0;  // of sequences that this step computes too
    for (const Active& active : active_) {
      pages +=
          kv_->planning().demand(*active.known->slot).growth(active.known->stored, active.pending);
    }
    return pages;
  };
  while (kv_->accounting().available_pages() < taken() + needed) {
    Known* const least = least_recent();
    if (least == nullptr) return false;
    release(*least);
  }
  return true;
}

// Computes the pending tokens of all active sequences.
void DraftModel::compute() {
  reservations_.clear();
  slots_.clear();
  tokens_.clear();
  positions_.clear();
  spans_.clear();
  for (const Active& active : active_) {
    const Known& known = *active.known;
    reservations_.push_back({*known.slot, known.stored + active.pending});
  }
  kv_->reserve(reservations_);
  for (const Active& active : active_) {
    const Known& known = *active.known;
    spans_.push_back({.slot = known.slot->index(),
                      .first_row = static_cast<int32_t>(tokens_.size()),
                      .count = active.pending,
                      .context = known.stored,
                      .tiers = kv_->tiers(*known.slot)});
    slots_.push_back(&*known.slot);
    for (int32_t i = known.stored; i < known.stored + active.pending; ++i) {
      const int32_t behind = i - known.first_drafted;
      tokens_.push_back(behind < 0 ? active.wish->tokens[static_cast<size_t>(i)]
                                   : known.drafted[static_cast<size_t>(behind)]);
      positions_.push_back(i);
    }
  }
  model_->forward({.tokens = tokens_, .positions = positions_, .sequences = spans_}, kv_->view(),
                  stream_);
  kv_->compress(slots_);
}

// Chooses a token of each sequence that is caught up with, and leaves those that want another one.
void DraftModel::choose() {
  rows_.clear();
  size_t caught_up = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    Active& active = active_[i];
    active.known->stored += active.pending;
    if (active.known->stored >= active.known->first_drafted) {
      rows_.push_back(spans_[i].first_row + spans_[i].count - 1);
      active_[caught_up++] = active;
    }
  }
  active_.resize(caught_up);
  if (active_.empty()) return;
  const auto wanted = static_cast<int64_t>(active_.size());
  const int64_t outputs = model_->config().vocab;
  const MatrixView<float> logits{reinterpret_cast<float*>(logits_memory_.data()), wanted, outputs,
                                 outputs};
  model_->logits(rows_, logits, stream_);
  size_t left = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    DraftWish& wish = *active_[i].wish;
    const int32_t token = likeliest(logits.row(static_cast<int64_t>(i)), wish);
    if (token < 0 || std::ranges::binary_search(wish.stop_ids, token)) continue;
    wish.drafted[static_cast<size_t>(wish.count)] = token;
    active_[i].known->drafted[static_cast<size_t>(wish.count)] = token;
    if (++wish.count < wish.most) {
      active_[left] = {&wish, active_[i].known, 1};
      ++left;
    }
  }
  active_.resize(left);
}

// Returns: the likeliest token behind those that are drafted; -1: the grammar allows none.
int32_t DraftModel::likeliest(std::span<const float> logits, const DraftWish& wish) {
  TokenConstraint* const constraint = wish.constraint;
  if (constraint != nullptr) {
    for (int32_t i = 0; i < wish.count; ++i)
      constraint->accept(wish.drafted[static_cast<size_t>(i)]);
    constraint->fill(mask_);
    if (wish.count > 0) constraint->take_back(wish.count);
  }
  int32_t best = -1;
  float highest = -std::numeric_limits<float>::infinity();
  for (int32_t token = 0; token < vocab_; ++token) {
    const float logit = logits[static_cast<size_t>(token)];
    if (logit > highest && (constraint == nullptr || allows(mask_.data(), token))) {
      highest = logit;
      best = token;
    }
  }
  return best;
}

}  // namespace tessera
