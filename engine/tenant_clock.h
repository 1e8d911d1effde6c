#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace tessera {

// Virtual time of tenants: tokens computed for a tenant, divided by its share. One step of virtual
// time is 1 / kVirtualToken of a token at share 1.
inline constexpr int64_t kVirtualToken = int64_t{1} << 16;

// Divides the engine among tenants, in tokens computed. Each tenant has a clock. An admission
// advances it by the prompt tokens that are not cached, each generated token by one; a recompute
// costs nothing. A sequence gets its *place* when it is first admitted: the time of its tenant's
// clock. Scheduling order is by place; waiting sequences take places that their tenant's clock will
// show. So the tenant that has received least for its share is served first.
//
// Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996, section 2.1) gives the start tags.
// The length of an answer is not known in advance. So service is counted as in VTC (Sheng et al.,
// "Fairness in Serving Large Language Models", OSDI 2024, section 4.1). Our addition:
// places belong to the tenant. Its sequences fill them in the order of order_of, so that priorities
// work as they do without tenants. With one tenant the order is that of order_of.
//
// A tenant that returns is moved forward to the others, less a credit: time that it did not use is
// not saved up.
//
// A tenant that waits while another is ahead of it by more than the lead goes first: the other's
// places move behind its clock. So it may preempt them (Scheduler), for slots and for pages.
//
// A client that receives the end of its answer sends the next request a moment later. If a tenant
// that is ahead took the slot meanwhile, it would be preempted at once. The computed part of its
// prompt would be lost. So the slot is *held* for some steps for the tenant whose request ended.
// Disk schedulers call this anticipation (Iyer and Druschel, "Anticipatory scheduling", SOSP 2001).
// An answer of n tokens holds its slot for n / kTokensOfHeldStep steps, at most kMaxHeldSteps. So a
// tenant that does not return wastes at most 1 / kTokensOfHeldStep of its slots' steps. Answers
// that end together hold a slot each, because their clients return together. A tenant also leaves a
// held slot free if only its next prompt would bring it ahead: it would be preempted just the same.
//
// No starvation: places never move back, except that a tenant's own better priorities take them.
// Another tenant gets before a given place only while its clock is behind by the lead. Each token
// advances that clock, which never moves back either.
class TenantClock {
 public:
  static constexpr int64_t kTokensOfHeldStep = 16;
  static constexpr int64_t kMaxHeldSteps = 8;

  // credit, lead: see above; in tokens of the tenant that has them. max_inside: maximum number of
  // unfinished sequences.
  struct Limits {
    int64_t credit = 0;
    int64_t lead = 0;
  };
  TenantClock(const Limits& limits, int32_t max_inside);

  // Sorts unfinished sequences into scheduling order; sets their start and clock.
  void arrange(std::vector<std::unique_ptr<Sequence>>& sequences);

  // A waiting sequence got a slot, with its first `stored` tokens cached or forked. Only the first
  // admission of a sequence has an effect.
  void admit(Sequence& sequence, int32_t stored);
  // Tokens were computed for the sequence beside its prompt: generated ones, and drafted ones also
  // if they were not chosen.
  void charge_tokens(const Sequence& sequence, int32_t tokens);
  // A running sequence is complete, and returns its slot.
  void finish(const Sequence& sequence);

  // Returns: the virtual time of a tenant with unfinished sequences; for tests.
  int64_t time_of(int32_t tenant) const;

 private:
  struct Tenant {
    int32_t id = 0;
    int32_t share = 1;  // that of its newest request
    RequestId newest = 0;
    int64_t time = 0;
    std::array<int32_t, kMaxHeldSteps> held{};  // slots that are held for [index] + 1 more steps
    bool backlogged = false;                    // sequences wait for their first admission
    bool waits = false;                         // sequences wait, also preempted ones
    bool inside = false;                        // has unfinished sequences
  };

  Tenant& tenant_of(const Sequence& sequence);
  void note_tenants();
  void move_forward(Tenant& tenant) const;
  void yield_places();
  int32_t slots_held_from(const Tenant& tenant, int64_t time) const;
  void fill_places(std::span<Sequence* const> sequences);

  const int64_t credit_;         // in virtual time at share 1
  const int64_t lead_;           // the same
  int64_t reference_ = 0;        // clock of the served tenants; never moves back
  std::vector<Tenant> tenants_;  // by id: inside, ahead of the reference, or with a slot held
  bool any_held_ = false;        // in this step
  std::vector<Sequence*> by_tenant_;
  std::vector<int64_t> places_;  // of one tenant
};

}  // namespace tessera
