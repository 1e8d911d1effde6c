#include "server/work_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace tessera {
namespace {

// Bytes that each job counts in its client's turns, besides its own.
constexpr uint64_t kJobBytes = 1024;

}  // namespace

WorkPool::WorkPool(const Options& options, const EngineLoad& engine)
    : options_(options), engine_(engine) {
  TESSERA_CHECK(options.threads >= 2, "a work pool has a thread for short jobs, and another");
  for (std::size_t i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this, short_only = i == 0] { run(short_only); });
  }
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool WorkPool::submit(std::string_view key_name, std::size_t bytes, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (jobs_ == options_.max_jobs) {
      return false;
    }
    ++jobs_;
    auto it = clients_.find(key_name);
    if (it == clients_.end()) {
      it = clients_.try_emplace(std::string(key_name)).first;
      it->second.turn = now_;
    }
    auto& jobs = bytes > options_.long_bytes ? it->second.long_jobs : it->second.short_jobs;
    jobs.push_back({++last_number_, bytes, std::move(job)});
  }
  // All, because a thread for short jobs alone may not take a long one.
  changed_.notify_all();
  return true;
}

// Returns: the client whose turn it is, or end().
WorkPool::Clients::iterator WorkPool::next(bool short_only) {
  auto chosen = clients_.end();
  for (auto it = clients_.begin(); it != clients_.end(); ++it) {
    const bool has =
        !it->second.short_jobs.empty() || (!short_only && !it->second.long_jobs.empty());
    if (has && (chosen == clients_.end() || it->second.turn < chosen->second.turn)) {
      chosen = it;
    }
  }
  return chosen;
}

WorkPool::Job WorkPool::take(Clients::iterator client, bool short_only) {
  Client& queues = client->second;
  const bool takes_short = short_only || queues.long_jobs.empty() ||
                           (!queues.short_jobs.empty() &&
                            queues.short_jobs.front().number < queues.long_jobs.front().number);
  auto& jobs = takes_short ? queues.short_jobs : queues.long_jobs;
  Job job = std::move(jobs.front());
  jobs.pop_front();
  --jobs_;
  now_ = std::max(now_, queues.turn);
  queues.turn += job.bytes + kJobBytes;
  std::erase_if(clients_, [this](const auto& other) {
    return other.second.short_jobs.empty() && other.second.long_jobs.empty() &&
           other.second.turn <= now_;
  });
  return job;
}

void WorkPool::run(bool short_only) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto client = clients_.end();
    changed_.wait(lock, [&] {
      client = next(short_only);
      return client != clients_.end() || stopping_;
    });
    if (client == clients_.end()) {
      return;
    }
    const Job job = take(client, short_only);
    lock.unlock();
    {
      const PacedWork paced(job.bytes > options_.long_bytes ? engine_ : EngineLoad());
      job.run();
    }
    lock.lock();
  }
}

}  // namespace tessera
