// Use of a released slot does not compile: each claim is a static_assert on the types.

#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/sequence.h"

namespace tessera {
namespace {

// A slot has one owner, and only the cache makes one.
static_assert(!std::is_copy_constructible_v<KvSlot> && !std::is_copy_assignable_v<KvSlot>);
static_assert(std::is_nothrow_move_constructible_v<KvSlot>);
static_assert(std::is_nothrow_move_assignable_v<KvSlot>);
static_assert(!std::is_default_constructible_v<KvSlot>);
static_assert(!std::is_constructible_v<KvSlot, int32_t>);
static_assert(!std::is_constructible_v<KvSlot, KvCache&, int32_t>);

// Only Running has a slot.
template <class State>
concept HasSlot = requires(State state) {
  state.slot;
};
static_assert(HasSlot<SequenceState::Running>);
static_assert(!HasSlot<SequenceState::Waiting>);
static_assert(!HasSlot<SequenceState::SwappedOut>);
static_assert(!HasSlot<SequenceState::Finished>);
static_assert(!HasSlot<SwappedKv>);
static_assert(!HasSlot<SequenceState> && !HasSlot<Sequence>,
              "a sequence names its slot through running() alone");
static_assert(std::is_same_v<decltype(SequenceState::Running::slot), KvSlot>, "and owns it");
static_assert(!std::is_copy_constructible_v<SequenceState::Running>);
static_assert(std::is_same_v<decltype(std::declval<SequenceState&>().running()),
                             const SequenceState::Running*>,
              "so no caller moves the slot out of it");

// The cache takes a slot away from its owner: release needs an rvalue, or a list that it empties.
template <class Slot>
concept Releasable = requires(KvCache& kv, Slot&& slot) {
  kv.release(std::forward<Slot>(slot));
};
static_assert(Releasable<KvSlot>);
static_assert(!Releasable<KvSlot&>);
static_assert(!Releasable<const KvSlot&>);
static_assert(!Releasable<int32_t>);
static_assert(Releasable<std::vector<KvSlot>&>);
static_assert(!Releasable<const std::vector<KvSlot>&>);

// Functions that use a slot accept a KvSlot, and neither its number nor a state without a slot.
template <class Slot>
concept Readable = requires(const KvCache& kv, const Slot& slot) {
  kv.tiers(slot);
  kv.scoring(slot);
  kv.accounting().usage(slot);
  kv.swap_out(slot);
  kv.recomputable(slot);
};
template <class Slot>
concept Attachable = requires(KvCache& kv, const Slot& slot) {
  kv.prefixes().attach(slot, KvMatch{});
};
template <class Slot>
concept Insertable = requires(KvCache& kv, const Slot& slot) {
  kv.prefixes().insert(slot, KvPrompt{}, 0, false);
};
template <class Slot>
concept Reservable = requires(const Slot& slot) {
  KvReservation{slot, 0};
};
template <class Slot>
concept Forkable = requires(const KvSlot& source, const Slot& target) {
  KvCopy{source, target, 0};
  KvCopy{target, source, 0};
};
template <class Slot>
concept Compressible = requires(KvCache& kv, std::span<const Slot* const> slots) {
  kv.compress(slots);
};
template <class Slot>
concept Usable = Readable<Slot> || Attachable<Slot> || Insertable<Slot> || Reservable<Slot> ||
    Forkable<Slot> || Compressible<Slot>;
static_assert(Readable<KvSlot> && Attachable<KvSlot> && Insertable<KvSlot> && Reservable<KvSlot> &&
              Forkable<KvSlot> && Compressible<KvSlot>);
static_assert(!Usable<int32_t>);
static_assert(!Usable<Sequence>);
static_assert(!Usable<SequenceState::Waiting>);
static_assert(!Usable<SequenceState::SwappedOut>);
static_assert(!Usable<SequenceState::Finished>);

// Each way out of Running returns the slot, so a sequence cannot keep it.
static_assert(std::is_same_v<decltype(std::declval<SequenceState&>().preempt()), KvSlot>);
static_assert(std::is_same_v<
              decltype(std::declval<SequenceState&>().preempt(std::declval<SwappedKv>())), KvSlot>);
static_assert(std::is_same_v<decltype(std::declval<SequenceState&>().finish(KvUsage{})), KvSlot>);

// Only TenantClock says when a sequence has its turn.
template <class Place>
concept Movable = requires(Place place, const Turn& turn) {
  place.turn() = turn;
};
static_assert(!Movable<SequencePlace&>);

}  // namespace
}  // namespace tessera
