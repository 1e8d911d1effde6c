#include "server/base/work_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/base/thread_time.h"

namespace tessera {
namespace {

// Bytes that each job counts in its client's turns, besides its own.
constexpr uint64_t kJobBytes = 1024;

// CPU time that a client's short jobs may use at once without being paced, and the part of the
// engine's cores that they may use for long.
constexpr std::chrono::milliseconds kUnpacedTime{50};
constexpr int64_t kUnpacedPart = 32;

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
    Job added{++last_number_, bytes, std::move(job)};
    auto& jobs = is_long(added) ? it->second.long_jobs : it->second.short_jobs;
    jobs.push_back(std::move(added));
  }
  // All, because a thread for short jobs alone may not take a long one.
  changed_.notify_all();
  return true;
}

// Returns: the client whose turn it is, or end().
WorkPool::Clients::iterator WorkPool::next(bool short_only) {
  const Clock::time_point now = Clock::now();
  for (auto& [name, client] : clients_) {
    leak(client, now);
  }
  auto chosen = clients_.end();
  for (auto it = clients_.begin(); it != clients_.end(); ++it) {
    const Client& client = it->second;
    const bool has = short_only ? !client.short_jobs.empty() && client.used <= kUnpacedTime
                                : !client.short_jobs.empty() || !client.long_jobs.empty();
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
  job.paced = is_long(job) || queues.used > kUnpacedTime;
  now_ = std::max(now_, queues.turn);
  queues.turn += job.bytes + kJobBytes;
  std::erase_if(clients_, [this](const auto& other) {
    return other.second.short_jobs.empty() && other.second.long_jobs.empty() &&
           other.second.turn <= now_ && other.second.used.count() == 0;
  });
  return job;
}

void WorkPool::leak(Client& client, Clock::time_point now) const {
  if (client.used.count() > 0) {
    client.used -= std::min(client.used, (now - client.used_at) * engine_.threads / kUnpacedPart);
  }
  client.used_at = now;
}

// Adds the CPU time of a short job. While the client is over its part, this stays bounded, so that
// its jobs are short again soon after the last of many.
void WorkPool::add_used(const std::string& name, std::chrono::nanoseconds used) {
  const auto [it, is_new] = clients_.try_emplace(name);
  Client& client = it->second;
  if (is_new) {
    client.turn = now_;
  }
  leak(client, Clock::now());
  client.used = std::min<std::chrono::nanoseconds>(client.used + used, 2 * kUnpacedTime);
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
    const std::string name = client->first;
    const Job job = take(client, short_only);
    lock.unlock();
    const int64_t begin = thread_nanoseconds();
    {
      const PacedWork paced(job.paced ? engine_ : EngineLoad());
      job.run();
    }
    const std::chrono::nanoseconds used(thread_nanoseconds() - begin);
    lock.lock();
    if (engine_.loops != nullptr && !is_long(job)) {
      add_used(name, used);
    }
  }
}

}  // namespace tessera
