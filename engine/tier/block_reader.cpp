#include "engine/tier/block_reader.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

BlockReader::BlockReader(std::span<BlockStore* const> stores, const Shape& shape)
    : stores_(stores.begin(), stores.end()),
      block_tokens_(static_cast<size_t>(shape.block_tokens)),
      buffers_(shape.bytes, shape.block_bytes, shape.block_tokens),
      guard_(shape.trial_pause) {
  last_tokens_.reserve(block_tokens_);
  const auto blocks = static_cast<size_t>(shape.path_blocks);
  for (Job& job : jobs_) {
    job.paths.reserve(blocks);
    job.tokens.reserve(blocks * block_tokens_);
    job.ready_.reserve(buffers_.size());
  }
  thread_ = std::thread([this] { run(); });
}

BlockReader::~BlockReader() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// ---- the engine's thread

BlockReader::Job* BlockReader::free_job() {
  const std::lock_guard lock(mutex_);
  const auto job = std::ranges::find(jobs_, Job::State::free, &Job::state_);
  if (job == jobs_.end()) {
    return nullptr;
  }
  job->paths.clear();
  job->tokens.clear();
  return job;
}

void BlockReader::start(Job& job) {
  TESSERA_CHECK(job.tokens.size() == job.paths.size() * block_tokens_,
                "a job has the tokens of its blocks");
  {
    const std::lock_guard lock(mutex_);
    job.state_ = Job::State::waits;
    job.released_ = false;
    job.turn_ = ++turn_;
  }
  changed_.notify_one();
}

const BlockBuffer* BlockReader::front(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return job.ready_.empty() ? nullptr : job.ready_.front();
}

void BlockReader::pop(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    buffers_.give_back(job.ready_.front());
    job.ready_.erase(job.ready_.begin());
  }
  changed_.notify_one();
}

bool BlockReader::ended(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return job.state_ == Job::State::done && job.ready_.empty();
}

void BlockReader::release(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    if (job.state_ == Job::State::reads) {
      job.released_ = true;
    } else {
      free(job);
    }
  }
  changed_.notify_one();
}

void BlockReader::free(Job& job) {
  for (BlockBuffer* const buffer : job.ready_) {
    buffers_.give_back(buffer);
  }
  job.ready_.clear();
  job.state_ = Job::State::free;
}

void BlockReader::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, most, [this, before = events_] { return events_ != before; });
}

void BlockReader::note_timeout() {
  {
    const std::lock_guard lock(mutex_);
    guard_.note_timeout(std::chrono::steady_clock::now());
    suspended_ = guard_.suspended();
  }
  changed_.notify_one();
}

BlockReader::Stats BlockReader::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = counting_;
  stats.suspensions = guard_.suspensions();
  return stats;
}

// ---- the reader's thread

void BlockReader::run() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (Job* const job = next_job()) {
      read(*job, lock);
    } else if (!guard_.suspended()) {
      changed_.wait(lock);
    } else if (std::chrono::steady_clock::now() < guard_.next_trial()) {
      changed_.wait_until(lock, guard_.next_trial());
    } else {
      try_again(lock);
    }
  }
}

// Asks the last store, the slowest one. A block that it no longer has tells nothing, so the next
// prompt is the trial.
void BlockReader::try_again(std::unique_lock<std::mutex>& lock) {
  BlockBuffer* const buffer = buffers_.take();
  bool answered = false;
  if (buffer != nullptr) {
    BlockStore& store = *stores_.back();
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    const std::optional<BlockId> id = store.find(last_path_, last_accept_);
    const bool failed =
        id.has_value() && absl::IsUnavailable(store.read(*id, last_tokens_, buffer->room).status());
    answered = !failed && std::chrono::steady_clock::now() - begin < ReadGuard::kInTime;
    lock.lock();
    buffers_.give_back(buffer);
  }
  if (answered) {  // the reads that hung tell nothing of those to come
    counting_.block_seconds[stores_.size() - 1] = {};
  }
  guard_.note_trial(answered, std::chrono::steady_clock::now());
  suspended_ = guard_.suspended();
}

BlockReader::Job* BlockReader::next_job() {
  Job* next = nullptr;
  for (Job& job : jobs_) {
    if (job.state_ == Job::State::waits && (next == nullptr || job.turn_ < next->turn_)) {
      next = &job;
    }
  }
  return next;
}

void BlockReader::read(Job& job, std::unique_lock<std::mutex>& lock) {
  job.state_ = Job::State::reads;
  for (size_t index = 0; index < job.paths.size(); ++index) {
    BlockBuffer* buffer = buffers_.take();
    while (buffer == nullptr && !job.released_ && !stops_) {
      changed_.wait(lock);
      buffer = buffers_.take();
    }
    std::optional<size_t> store;
    if (buffer != nullptr && !job.released_ && !stops_) {
      lock.unlock();
      const auto begin = std::chrono::steady_clock::now();
      store = read_block(job, index, *buffer);
      const std::chrono::steady_clock::duration took = std::chrono::steady_clock::now() - begin;
      lock.lock();
      note_read(store, took);
    }
    if (!store.has_value()) {
      if (buffer != nullptr) {
        buffers_.give_back(buffer);
      }
      break;
    }
    counting_.bytes += static_cast<int64_t>(buffer->pages);
    job.ready_.push_back(buffer);
    ++events_;
    arrived_.notify_one();
  }
  job.state_ = Job::State::done;
  if (job.released_) {
    free(job);
  }
  ++events_;
  arrived_.notify_one();
}

void BlockReader::note_read(std::optional<size_t> store, std::chrono::steady_clock::duration took) {
  const double seconds = std::chrono::duration<double>(took).count();
  counting_.seconds += seconds;
  if (store.has_value()) {
    ++counting_.blocks[*store];
    counting_.block_seconds[*store].add(seconds);
    guard_.note_block(took);
  }
}

std::optional<size_t> BlockReader::read_block(const Job& job, size_t index, BlockBuffer& buffer) {
  const std::span<const int32_t> tokens =
      std::span(job.tokens).subspan(index * block_tokens_, block_tokens_);
  last_path_ = job.paths[index];
  last_accept_ = job.accept;
  last_tokens_.assign(tokens.begin(), tokens.end());
  for (size_t store = 0; store < stores_.size(); ++store) {
    const std::optional<BlockId> id = stores_[store]->find(job.paths[index], job.accept);
    if (!id.has_value()) {
      continue;
    }
    const absl::StatusOr<size_t> pages = stores_[store]->read(*id, tokens, buffer.room);
    if (!pages.ok()) {
      continue;
    }
    buffer.id = *id;
    buffer.tokens.assign(tokens.begin(), tokens.end());
    buffer.pages = *pages;
    buffer.name = 0;
    if (store > 0) {
      stores_[0]->put(buffer.block()).IgnoreError();
    }
    return store;
  }
  return std::nullopt;
}

}  // namespace tessera
