#include "engine/prefix_restore.h"

#include <algorithm>

namespace tessera {

using Node = PrefixTree::Node;

void PrefixRestore::begin_step(Sequences sequences) {
  free_slots_ = max_sequences_;
  held_ = 0;
  for (Reading& reading : readings_) {
    reading.waits = false;
  }
  for (const auto& sequence : sequences) {
    free_slots_ -= sequence->running() != nullptr ? 1 : 0;
    Reading* const reading = reading_of(sequence->id());
    if (reading != nullptr && sequence->waiting() != nullptr) {
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
  Sequence::Waiting& waiting = *sequence.waiting();
  if (waiting.in_stores.over) {
    return;
  }
  const int32_t tokens =
      std::min(sequence.max_cached_tokens(), static_cast<int32_t>(prompt.tokens.size()) - 1);
  waiting.match = prefixes_.match(prompt, tokens, waiting.match);
  if (Reading* const reading = reading_of(sequence.id())) {
    if (!take(*reading, sequence, prompt, now)) {
      end(*reading);
      waiting.in_stores.over = true;
    }
    waiting.match = prefixes_.match(prompt, tokens, waiting.match);
  } else if (!prefixes_.is_continued(prompt, tokens, waiting.match)) {
    waiting.in_stores.over = true;
  } else if (ahead_of(i, sequences) < kAhead + free_slots_) {
    start(sequence, prompt, tokens, now);
  }
  held_ += waiting.in_stores.over ? 0 : 1;
}

// Sequences of the same tenant that were read and wait before this one.
int32_t PrefixRestore::ahead_of(size_t i, Sequences sequences) const {
  const int32_t tenant = sequences[i]->tenant().id;
  return static_cast<int32_t>(
      std::count_if(sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const auto& other) {
                      return other->waiting() != nullptr && other->tenant().id == tenant &&
                             other->waiting()->in_stores.was_read;
                    }));
}

void PrefixRestore::start(Sequence& sequence, const KvPrompt& prompt, int32_t tokens, Time now) {
  const auto reading = std::ranges::find(readings_, nullptr, &Reading::job);
  BlockReader::Job* const job = reading == readings_.end() ? nullptr : tiers_->reader().free_job();
  if (job == nullptr) {
    return;
  }
  const KvMatch& match = sequence.waiting()->match;
  prefixes_.describe(prompt, tokens, match, *job);
  sequence.waiting()->in_stores.was_read = true;
  *reading = {job, sequence.id(), match.blocks, now, true};
  tiers_->reader().start(*job);
}

bool PrefixRestore::take(Reading& reading, Sequence& sequence, const KvPrompt& prompt, Time now) {
  BlockReader& reader = tiers_->reader();
  const KvMatch match = prefixes_.whole_blocks_of(sequence.waiting()->match);
  if (match.blocks < reading.next) {  // the blocks before have been evicted
    return false;
  }
  SharedPrefixes::Restored path(prefixes_, match);
  bool fits = true;
  for (const BlockBuffer* stored = reader.front(*reading.job); stored != nullptr && fits;
       stored = reader.front(*reading.job)) {
    // Another sequence may have computed or read the first blocks.
    fits = reading.next < match.blocks || path.add(prompt, *stored);
    reader.pop(*reading.job);
    reading.next += fits ? 1 : 0;
    reading.progress = now;
  }
  if (fits && now - reading.progress > kPatience && !reader.ended(*reading.job)) {
    tiers_->count_slow_read();
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
