#include "engine/tenant_clock.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace tessera {
namespace {

// Rounds up, so that every token advances the clock.
int64_t cost_of(int64_t tokens, int32_t share) {
  return (tokens * kVirtualToken + share - 1) / share;
}

bool awaits_first_admission(const Sequence& sequence) {
  return !sequence.place().time().has_value();
}

bool before_within_tenant(const Sequence& a, const Sequence& b) {
  return std::tuple(a.place().tenant().id, a.place().order(), a.request_id(), a.id()) <
         std::tuple(b.place().tenant().id, b.place().order(), b.request_id(), b.id());
}

bool before(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
  return a->place().start() != b->place().start() ? a->place().start() < b->place().start()
                                                  : before_within_tenant(*a, *b);
}

using HeldSlots = std::array<int32_t, TenantClock::kMaxHeldSteps>;

int32_t slots_of(const HeldSlots& held) {
  return std::accumulate(held.begin(), held.end(), 0);
}

void pass_step(HeldSlots& held) {
  held[0] = 0;
  std::rotate(held.begin(), held.begin() + 1, held.end());
}

// Gives up the slot that would be held for the fewest steps.
void give_up_slot(HeldSlots& held) {
  const auto slots = std::find_if(held.begin(), held.end(), [](int32_t n) { return n > 0; });
  if (slots != held.end()) {
    --*slots;
  }
}

// Prompt tokens that a waiting sequence must compute, by its latest match.
int64_t expected_tokens(const Sequence& sequence, bool follows) {
  const int64_t prompt = sequence.tokens().prompt_size();
  return std::max<int64_t>(
      1, prompt - (follows ? sequence.request().shareable : sequence.prefix().matched_tokens()));
}

}  // namespace

TenantClock::TenantClock(const Limits& limits, int32_t max_inside)
    : credit_(limits.credit * kVirtualToken), lead_(limits.lead * kVirtualToken) {
  const auto inside = static_cast<size_t>(max_inside);
  tenants_.reserve(3 * inside);
  by_tenant_.reserve(inside);
  places_.reserve(inside);
}

TenantClock::Tenant& TenantClock::tenant_of(const Sequence& sequence) {
  const TenantOfRequest& wanted = sequence.place().tenant();
  const auto place =
      std::lower_bound(tenants_.begin(), tenants_.end(), wanted.id,
                       [](const Tenant& tenant, int32_t id) { return tenant.id < id; });
  if (place != tenants_.end() && place->id == wanted.id) {
    return *place;
  }
  return *tenants_.insert(place, {.id = wanted.id, .share = wanted.share});
}

void TenantClock::arrange(std::vector<std::unique_ptr<Sequence>>& sequences) {
  by_tenant_.clear();
  for (const auto& sequence : sequences) {
    by_tenant_.push_back(sequence.get());
  }
  std::sort(by_tenant_.begin(), by_tenant_.end(),
            [](const Sequence* a, const Sequence* b) { return before_within_tenant(*a, *b); });
  note_tenants();
  any_held_ = std::any_of(tenants_.begin(), tenants_.end(),
                          [](const Tenant& tenant) { return slots_of(tenant.held) > 0; });
  yield_places();
  for (auto first = by_tenant_.begin(); first != by_tenant_.end();) {
    const auto last = std::find_if(first, by_tenant_.end(), [&](const Sequence* sequence) {
      return sequence->place().tenant().id != (*first)->place().tenant().id;
    });
    fill_places({first, last});
    first = last;
  }
  for (Tenant& tenant : tenants_) {
    pass_step(tenant.held);
  }
  if (sequences.empty()) {
    tenants_.clear();  // nothing is owed after the last sequence
  }
  if (!std::is_sorted(sequences.begin(), sequences.end(), before)) {
    std::sort(sequences.begin(), sequences.end(), before);
  }
}

// Moves the reference, and the tenants that begin to wait. A tenant whose clock is behind the
// reference would be moved forward on its return, so it is forgotten.
void TenantClock::note_tenants() {
  int64_t latest = reference_;
  int64_t earliest_backlogged = std::numeric_limits<int64_t>::max();
  for (Tenant& tenant : tenants_) {
    tenant.inside = false;
    latest = std::max(latest, tenant.time);
    if (tenant.backlogged) {
      earliest_backlogged = std::min(earliest_backlogged, tenant.time);
    }
  }
  const bool backlog = earliest_backlogged != std::numeric_limits<int64_t>::max();
  reference_ = std::max(reference_, backlog ? earliest_backlogged : latest);
  for (const Sequence* sequence : by_tenant_) {
    Tenant& tenant = tenant_of(*sequence);
    tenant.inside = true;
    if (sequence->request_id() >= tenant.newest) {
      tenant.newest = sequence->request_id();
      tenant.share = sequence->place().tenant().share;
    }
  }
  auto first = by_tenant_.begin();
  for (Tenant& tenant : tenants_) {
    const auto last = std::find_if(first, by_tenant_.end(), [&](const Sequence* sequence) {
      return sequence->place().tenant().id > tenant.id;
    });
    const bool waits =
        std::any_of(first, last, [](const Sequence* s) { return awaits_first_admission(*s); });
    if (waits && !tenant.backlogged) {
      move_forward(tenant);
    }
    tenant.backlogged = waits;
    tenant.waits =
        std::any_of(first, last, [](const Sequence* s) { return s->state().running() == nullptr; });
    first = last;
  }
  std::erase_if(tenants_, [this](const Tenant& tenant) {
    return !tenant.inside && slots_of(tenant.held) == 0 &&
           tenant.time <= reference_ - credit_ / tenant.share;
  });
}

void TenantClock::move_forward(Tenant& tenant) const {
  tenant.time = std::max(tenant.time, reference_ - credit_ / tenant.share);
}

// Returns: slots that the tenant leaves free for others, which are behind its clock at `time`.
int32_t TenantClock::slots_held_from(const Tenant& tenant, int64_t time) const {
  int32_t slots = 0;
  if (!any_held_) {
    return slots;
  }
  for (const Tenant& other : tenants_) {
    if (other.id != tenant.id && time - other.time >= lead_ / other.share) {
      slots += slots_of(other.held);
    }
  }
  return slots;
}

// Moves the places of each tenant behind the clocks of the tenants that wait and are behind it.
void TenantClock::yield_places() {
  const Tenant* own = nullptr;
  int64_t earliest = 0;  // place that the tenant may keep
  for (Sequence* sequence : by_tenant_) {
    if (own == nullptr || own->id != sequence->place().tenant().id) {
      own = &tenant_of(*sequence);
      earliest = std::numeric_limits<int64_t>::min();
      for (const Tenant& other : tenants_) {
        if (other.waits && own->time - other.time >= lead_ / other.share) {
          earliest = std::max(earliest, other.time + 1);
        }
      }
    }
    if (sequence->place().time().has_value()) {
      sequence->place().time_ = std::max(*sequence->place().time(), earliest);
    }
  }
}

// Gives the places of a tenant, earliest first, to its sequences in their order. Tells each the
// slots that it leaves free, by the clock that its admission leads to: if that is ahead by the
// lead, it would be displaced at once.
void TenantClock::fill_places(std::span<Sequence* const> sequences) {
  places_.clear();
  for (const Sequence* sequence : sequences) {
    if (!awaits_first_admission(*sequence)) {
      places_.push_back(*sequence->place().time());
    }
  }
  std::sort(places_.begin(), places_.end());
  const size_t taken = places_.size();
  const Tenant& tenant = tenant_of(*sequences.front());
  int64_t next = tenant.time;
  size_t admitted = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const bool of_same_request = i > 0 && sequences[i - 1]->request_id() == sequence.request_id();
    if (!awaits_first_admission(sequence)) {
      sequence.place().time_ = places_[admitted++];
    }
    // Samples of one request stand together.
    const int64_t own = i < taken ? places_[i] : next;
    Turn& turn = sequence.place().turn_;
    turn.start = of_same_request ? sequences[i - 1]->place().start() : own;
    if (i >= taken) {
      next += cost_of(expected_tokens(sequence, of_same_request), tenant.share);
    }
    turn.clock = tenant.time;
    turn.slots_held = sequence.state().running() ? 0 : slots_held_from(tenant, next);
  }
}

void TenantClock::admit(Sequence& sequence, int32_t stored) {
  if (!awaits_first_admission(sequence)) {
    return;
  }
  Tenant& tenant = tenant_of(sequence);
  sequence.place().time_ = tenant.time;
  const int64_t computed = sequence.tokens().prompt_size() - stored;
  tenant.time += cost_of(std::max<int64_t>(1, computed), tenant.share);
  give_up_slot(tenant.held);
}

void TenantClock::charge_tokens(const Sequence& sequence, int32_t tokens) {
  Tenant& tenant = tenant_of(sequence);
  tenant.time += cost_of(tokens, tenant.share);
}

void TenantClock::finish(const Sequence& sequence) {
  const int64_t steps = std::min<int64_t>(
      std::ssize(sequence.tokens().generated()) / kTokensOfHeldStep, kMaxHeldSteps);
  if (steps > 0) {
    ++tenant_of(sequence).held[static_cast<size_t>(steps - 1)];
  }
}

int64_t TenantClock::time_of(int32_t tenant) const {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [&](const Tenant& other) { return other.id == tenant; });
  TESSERA_CHECK(found != tenants_.end(), "the tenant has no unfinished sequences");
  return found->time;
}

}  // namespace tessera
