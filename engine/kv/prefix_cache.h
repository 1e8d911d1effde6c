#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/kv_usage.h"
#include "engine/kv/prefix_tree.h"
#include "engine/kv/seen_paths.h"
#include "kernels/backend.h"
#include "kernels/kv_arena.h"

namespace tessera {

// A sequence's tokens as the cache looks them up, and what it may take. The salt's memory is the
// caller's.
struct KvPrompt {
  std::span<const int32_t> tokens;
  std::span<const uint64_t> hashes;  // PrefixTree::hash of each of its first units
  std::string_view salt;             // nobody else finds what was stored under it
  KvFormat format;                   // in which the sequence stores
  KvFormat accept;                   // the coarsest that it reads
};

// The longest beginning of a sequence that is there.
struct KvMatch {
  PrefixTree::Node node = PrefixTree::kNone;  // the last unit's
  int32_t blocks = 0;
  int32_t low_blocks = 0;  // of them, in another format than the sequence's own: in `low`
  KvFormat low;
  uint8_t grade = 0;
  int64_t pages = 0;     // of all units
  uint64_t version = 0;  // of the tree, and one more
};

struct PrefixCacheStats {
  int64_t blocks = 0;           // held
  int64_t pages = 0;            // of them
  int64_t unlocked_pages = 0;   // that no running sequence uses: taken where others need room
  int64_t pinned_blocks = 0;    // of all pins together
  int64_t inserted_blocks = 0;  // so far, as the following
  int64_t demoted_blocks = 0;
  int64_t evicted_blocks = 0;
  int64_t handed_over_blocks = 0;
};

// What sequences have in common: the radix tree, and the units of pages behind it. Part of
// KvCache, which knows slots and policies; here a slot is who holds which path.
//
// Under pressure the least recently used units that nobody uses are first encoded anew, one step
// down the ladder, and when no step is left evicted. Pages that a unit holds are never written by
// sequences.
class PrefixCache {
 public:
  // ladder: places in the arena's formats, of those that units may be demoted to; empty: eviction
  // alone. Requires: an arena with units, and all formats of `ladder` among prefix_block_tiers.
  // demote_scratch: of kv_demote; others may use it between calls.
  PrefixCache(KvArena& arena, std::span<const uint8_t> ladder, const Backend& backend,
              Stream stream, std::span<std::byte> demote_scratch);

  // Bytes that it takes for each unit beside pages and tables.
  static int64_t block_bytes(int32_t prefix_block_tokens) {
    return PrefixTree::block_bytes(prefix_block_tokens) +
           kSeenPathsPerBlock * SeenPaths::kPathBytes;
  }

  // See SeenPaths; flush() forgets.
  int32_t record(std::span<const uint64_t> paths) { return seen_.record(paths); }

  // At most `units` units. known: of the same sequence, an earlier one, from which it goes on.
  KvMatch match(const KvPrompt& prompt, int32_t blocks, const KvMatch& known) const;
  // Those of its pages that are counted in unlocked_pages(): attaching takes them away.
  int64_t unlocked_pages(const KvMatch& match) const;

  // A slot that holds nothing begins with what was matched, and locks it.
  void attach(int32_t slot, KvTiers tiers, const KvMatch& match);
  // Its units from those that it holds already up to `units` of the prompt enter. One that is there
  // already, that nobody uses and that is no finer makes place for the slot's; with `relabel` also
  // where that is finer. At another the slot stops: it keeps the rest for itself. The pages of
  // those that made place are free now: how many. Requires: its rows' high tier is as kv_store
  // filled it.
  int64_t insert(int32_t slot, const KvPrompt& prompt, int32_t blocks, bool relabel);
  // The target has the first `tokens` tokens of the source. Where these have closed groups behind
  // the last unit that both hold, neither enters anything more: a unit's pages are not two slots'
  // own.
  void fork(int32_t source, int32_t target, int32_t tokens);
  void release(int32_t slot);

  // Units of its own format that only this slot uses, from its last one on, leave the cache, so
  // that their pages are its own. How many did.
  int32_t hand_over(int32_t slot);

  // What a slot shares with the cache.
  int32_t low_blocks(int32_t slot) const { return at(slot).low_blocks; }
  // Of units that end behind a token: 0, or one behind all units of its low tier.
  int64_t cached_high_pages(int32_t slot, int32_t from_token) const;
  int64_t cached_low_pages(int32_t slot) const;
  // What would become evictable if slots were let go of one after the other: with each call one
  // more of them, since the last forget_releases().
  int64_t returned_pages(int32_t slot);
  void forget_releases();

  // Demotes and evicts until so many pages more are free, or nothing is left to take. How many are.
  int64_t make_room(int64_t pages);
  int64_t unlocked_pages() const { return tree_.unlocked_pages(); }
  // Pins too; what running sequences use stays with them. The pages that are free now.
  int64_t flush();

  using Time = std::chrono::steady_clock::time_point;
  // The slot's path stays until that time, even under pressure; false: that would leave no room for
  // `reserve` pages beside what is pinned.
  bool pin(int32_t slot, Time until, int64_t reserve);
  void unpin(Time now);  // those whose time has passed

  int32_t prefix_block_tokens() const { return tree_.prefix_block_tokens(); }
  PrefixCacheStats stats() const;
  void add_pages(std::span<KvFormatPages> of_formats) const;  // in the order of the arena's
  void check_integrity() const;

 private:
  static constexpr size_t kBatch = 64;  // units of one op
  // Of paths more are remembered than there is room for units: a prompt recurs after many others,
  // and those were compressed.
  static constexpr int64_t kSeenPathsPerBlock = 4;
  static constexpr uint8_t kNoLevel = PrefixTree::kMaxLevels;

  // A slot's path.
  struct Holder {
    PrefixTree::Node node = PrefixTree::kNone;  // locked
    int32_t blocks = 0;
    int32_t low_blocks = 0;
    uint8_t low_level = 0;
    uint8_t own_level = 0;
    uint8_t grade = 0;
    bool stopped = false;  // it enters nothing more
  };
  struct Pin {
    PrefixTree::Node node;
    Time until;
    int64_t pages;
  };

  const Holder& at(int32_t slot) const { return holders_[static_cast<size_t>(slot)]; }
  Holder& at(int32_t slot) { return holders_[static_cast<size_t>(slot)]; }
  uint8_t level_of(KvFormat format) const;
  std::span<const int32_t> block(std::span<const int32_t> tokens, int32_t index) const;
  bool gives_way(PrefixTree::Node node, const Holder& holder, bool relabel) const;
  void share(int32_t slot, PrefixTree::Node node);
  int64_t demote(uint8_t level, int64_t pages);
  int64_t evict(int64_t pages);

  KvArena& arena_;
  const Backend& backend_;
  const Stream stream_;
  // Formats by level, the most precise first; the level that a level is demoted to.
  std::vector<uint8_t> tier_of_level_;
  std::array<uint8_t, PrefixTree::kMaxLevels> next_level_;
  PrefixTree tree_;
  SeenPaths seen_;
  std::vector<Holder> holders_;  // [slots]
  std::vector<Pin> pins_;
  std::vector<PrefixBlock> blocks_;  // of one op
  std::vector<int32_t> handles_;
  std::vector<KvShare> shares_;
  const std::span<std::byte> scratch_;
  // returned_pages(): locks let go of, by node, and which nodes these are. A node's are passed on
  // to its parent once there is none left on it; until then the parent has that lock too.
  std::vector<int32_t> releases_;
  std::vector<PrefixTree::Node> released_;
  PrefixCacheStats counting_;
};

}  // namespace tessera
