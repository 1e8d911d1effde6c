#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/tier/block_tiers.h"

namespace tessera {

// Reads what the stores have of waiting prompts back into the prefix cache, so that they are
// admitted as if it had always been there. A sequence whose prompt a store continues is held until
// its blocks have been read. Sequences near their admission come first, some for each tenant,
// because blocks that are read too early are evicted again. What takes less time to compute than to
// read is computed, and so is all while a disk does not answer. Used by the engine thread.
class PrefixRestore {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Sequences of a tenant that are read before there are slots for them.
  static constexpr int32_t kAhead = 4;
  // A path of which no block came for so long is computed.
  static constexpr std::chrono::milliseconds kPatience{1000};

  // tiers: null: nothing is held. Arguments outlive this.
  PrefixRestore(KvCache& kv, BlockTiers* tiers, int32_t max_sequences)
      : kv_(kv), prefixes_(kv.prefixes()), tiers_(tiers), max_sequences_(max_sequences) {}

  bool enabled() const { return tiers_ != nullptr; }
  // Ends jobs of sequences that no longer wait, and counts the free slots. Called once in each
  // step, before advance().
  void begin_step(Sequences sequences);
  // Starts the reads of waiting sequence `i`, and takes what has been read.
  // prompt: of that sequence.
  void advance(size_t i, Sequences sequences, const KvPrompt& prompt, Time now);
  // Returns: true if a sequence is held.
  bool holds() const { return held_ > 0; }
  // Waits until something has been read, for a millisecond at most.
  void wait() { tiers_->reader().wait(std::chrono::milliseconds(1)); }
  void give_up();  // ends all jobs

 private:
  struct Reading {
    BlockReader::Job* job = nullptr;  // null: this entry is free
    RequestId owner = 0;
    int32_t next = 0;  // index of the job's next block in its path
    Time progress;
    bool waits = false;  // its sequence was seen in this step
  };
  // Returns: true if there are pages for all known tokens of the sequence.
  bool has_room(const Sequence& sequence) const;
  static bool lost_blocks(const SequenceState::Waiting& waiting);
  // No store is read for the sequence, as long as it keeps the blocks that it matches.
  static void settle(SequenceState::Waiting& waiting);
  Reading* reading_of(RequestId id);
  void start(Sequence& sequence, const KvPrompt& prompt, size_t store, Time now);
  // Returns: false if the job is over.
  bool take(Reading& reading, Sequence& sequence, const KvPrompt& prompt, Time now);
  void end(Reading& reading);
  int32_t ahead_of(size_t i, Sequences sequences) const;

  KvCache& kv_;
  SharedPrefixes& prefixes_;
  BlockTiers* const tiers_;
  const int32_t max_sequences_;
  int32_t free_slots_ = 0;
  int32_t held_ = 0;  // in this step
  bool suspended_ = false;
  std::array<Reading, BlockReader::kJobs> readings_;
};

}  // namespace tessera
