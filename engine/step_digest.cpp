#include "engine/step_digest.h"

namespace tessera {
namespace {

// Hash of a list of numbers; the order matters.
class Digest {
 public:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (mix(static_cast<uint64_t>(numbers)), ...);
  }
  uint64_t value() const { return state_; }

 private:
  void mix(uint64_t number) {
    state_ = (state_ ^ number) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }

  uint64_t state_ = 0;
};

}  // namespace

uint64_t step_digest(std::span<const Candidate> candidates, Sequences sequences,
                     const KvAccounting& accounting) {
  Digest digest;
  digest.add(accounting.available_pages(), accounting.free_pages());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    digest.add(c.turn.tenant, c.turn.clock, c.turn.slots_held, c.turn.start, c.turn.order, c.tokens,
               sequences[i]->tokens().known().back(), c.stored, c.pages, c.running);
    digest.add(c.kv.page_tokens, c.kv.uneven, c.kv.low_tokens, c.kv.swap_in_pages, c.kv.compresses,
               c.kv.handed_over);
    digest.add(c.kv.sections.compressed, c.kv.sections.replayed);
    digest.add(c.tightening.steps, c.tightening.freed.back(), c.tightening.pages_needed);
    digest.add(c.prefix.unlocked, c.prefix.matched, c.prefix.locked, c.prefix.head_start,
               c.prefix.waits_for);
  }
  return digest.value();
}

}  // namespace tessera
