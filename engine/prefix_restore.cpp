#include "engine/prefix_restore.h"

#include <algorithm>

namespace tessera {

using Node = PrefixTree::Node;

void PrefixRestore::begin_step(Sequences sequences) {
  suspended_ = tiers_->suspended();
  free_slots_ = max_sequences_;
  held_ = 0;
  for (Reading& reading : readings_) {
    reading.waits = false;
  }
  for (const auto& sequence : sequences) {
    free_slots_ -= sequence->state().running() != nullptr ? 1 : 0;
    Reading* const reading = reading_of(sequence->id());
    if (reading != nullptr && sequence->state().waiting() != nullptr) {
      reading->waits = true;
    }
  }
  for (Reading& reading : readings_) {
    if (reading.job != nullptr && !reading.waits) {
      end(reading);
    }
  }
}

PrefixRestore::Reading* PrefixRestore::reading_of(RequestId id) {
  const auto reading = std::ranges::find_if(
      readings_, [id](const Reading& one) { return one.job != nullptr && one.owner == id; });
  return reading == readings_.end() ? nullptr : &*reading;
}

void PrefixRestore::advance(size_t i, Sequences sequences, const KvPrompt& prompt, Time now) {
  Sequence& sequence = *sequences[i];
  SequenceState::Waiting& waiting = *sequence.state().waiting();
  if (waiting.in_stores.over && !lost_blocks(waiting)) {
    return;
  }
  waiting.in_stores.over = false;
  waiting.in_stores.held = false;
  if (suspended_) {
    if (Reading* const reading = reading_of(sequence.id())) {
      end(*reading);
    }
    settle(waiting);
    return;
  }
  const int32_t tokens =
      std::min(sequence.max_cached_tokens(), static_cast<int32_t>(prompt.tokens.size()) - 1);
  waiting.match = prefixes_.match(prompt, tokens, waiting.match);
  if (Reading* const reading = reading_of(sequence.id())) {
    if (!take(*reading, sequence, prompt, now)) {
      end(*reading);
      settle(waiting);
    }
    waiting.match = prefixes_.match(prompt, tokens, waiting.match);
  } else if (const auto store = prefixes_.continued_in(prompt, tokens, waiting.match);
             !store.has_value()) {
    settle(waiting);
  } else if (!sequence.request().cache.prefetch && !has_room(sequence)) {
    return;  // its blocks would be evicted before it is admitted
  } else if (ahead_of(i, sequences) < kAhead + free_slots_) {
    start(sequence, prompt, *store, now);
  }
  waiting.in_stores.held = !waiting.in_stores.over;
  held_ += waiting.in_stores.held ? 1 : 0;
}

// Counts like the scheduler, which promises a further group to each running sequence. They may take
// it while the blocks are read.
bool PrefixRestore::has_room(const Sequence& sequence) const {
  const auto tokens = sequence.tokens().size();
  const KvDemand demand =
      kv_.planning().demand(sequence.request().kv.policy, sequence.tokens().prompt_size());
  const KvMatch& match = sequence.state().waiting()->match;
  const int64_t shared = match.pages() - prefixes_.unlocked_pages(match);
  const int64_t promised = (max_sequences_ - free_slots_) * demand.pages_for(kKvGroup);
  return demand.pages_for(tokens) - shared + promised <= kv_.accounting().available_pages();
}

// A preempted sequence has left its blocks in the cache, which may evict them while it waits. What
// was read is not read again: two sequences could evict each other's blocks for ever.
bool PrefixRestore::lost_blocks(const SequenceState::Waiting& waiting) {
  return !waiting.in_stores.was_read && waiting.match.blocks() < waiting.in_stores.matched;
}

void PrefixRestore::settle(SequenceState::Waiting& waiting) {
  waiting.in_stores.over = true;
  waiting.in_stores.matched = waiting.match.blocks();
}

// Sequences of the same tenant that were read and wait before this one.
int32_t PrefixRestore::ahead_of(size_t i, Sequences sequences) const {
  const int32_t tenant = sequences[i]->place().tenant().id;
  return static_cast<int32_t>(std::count_if(
      sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(i),
      [&](const auto& other) {
        return other->state().waiting() != nullptr && other->place().tenant().id == tenant &&
               other->state().waiting()->in_stores.was_read;
      }));
}

void PrefixRestore::start(Sequence& sequence, const KvPrompt& prompt, size_t store, Time now) {
  const auto reading = std::ranges::find(readings_, nullptr, &Reading::job);
  BlockReader::Job* const job = reading == readings_.end() ? nullptr : tiers_->reader().free_job();
  if (job == nullptr) {
    return;
  }
  if (!tiers_->chooses_to_read(store, prefixes_.block_tokens())) {
    settle(*sequence.state().waiting());
    return;
  }
  const KvMatch& match = sequence.state().waiting()->match;
  const int32_t tokens =
      std::min(sequence.max_cached_tokens(), static_cast<int32_t>(prompt.tokens.size()) - 1);
  prefixes_.describe(prompt, tokens, match, *job);
  sequence.state().waiting()->in_stores.was_read = true;
  *reading = {job, sequence.id(), match.blocks(), now, true};
  tiers_->reader().start(*job);
}

bool PrefixRestore::take(Reading& reading, Sequence& sequence, const KvPrompt& prompt, Time now) {
  BlockReader& reader = tiers_->reader();
  const KvMatch match = prefixes_.whole_blocks_of(sequence.state().waiting()->match);
  if (match.blocks() < reading.next) {  // the blocks before have been evicted
    return false;
  }
  SharedPrefixes::Restored path(prefixes_, match);
  bool fits = true;
  for (const BlockBuffer* stored = reader.front(*reading.job); stored != nullptr && fits;
       stored = reader.front(*reading.job)) {
    // Another sequence may have computed or read the first blocks.
    fits = reading.next < match.blocks() || path.add(prompt, *stored);
    reader.pop(*reading.job);
    reading.next += fits ? 1 : 0;
    reading.progress = now;
  }
  if (fits && now - reading.progress > kPatience && !reader.ended(*reading.job)) {
    tiers_->note_slow_read();
    return false;
  }
  return fits && !reader.ended(*reading.job);
}

void PrefixRestore::end(Reading& reading) {
  tiers_->reader().release(*reading.job);
  reading = {};
}

void PrefixRestore::give_up() {
  for (Reading& reading : readings_) {
    if (reading.job != nullptr) {
      end(reading);
    }
  }
}

}  // namespace tessera
