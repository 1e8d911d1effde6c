#include "server/grammar/grammar_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tessera {
namespace {

// Memory of a job and of a request that waits, besides the text.
constexpr int64_t kJobBytes = 1 << 10;
constexpr int64_t kWaiterBytes = 1 << 10;

// CPU time that each job counts in its client's turns, at least.
constexpr int64_t kLeastTime = 1'000'000;

}  // namespace

bool GrammarQueue::add(const GrammarClient& client, const std::string& digest,
                       const GrammarSpec& spec, Waiter& waiter) {
  const auto known = clients_.find(client.name);
  const int64_t mine = known == clients_.end() ? 0 : known->second.bytes;
  const bool joins = known != clients_.end() && known->second.by_digest.contains(digest);
  const int64_t bytes = kWaiterBytes + (joins ? 0 : kJobBytes + std::ssize(spec.text));
  if (mine + bytes > (max_bytes_ - (bytes_ - mine)) / 2) {
    return false;
  }
  Client& queue = clients_[client.name];
  if (known == clients_.end()) {
    queue.turn = now_;
    queue.tenant = client.tenant;
  }
  if (!joins) {
    queue.jobs.push_back({.client = client.name, .digest = digest, .spec = spec, .waiters = {}});
    queue.by_digest[digest] = std::prev(queue.jobs.end());
  }
  const auto job = queue.by_digest[digest];
  job->waiters.push_back(std::move(waiter));
  job->bytes += bytes;
  queue.bytes += bytes;
  bytes_ += bytes;
  change_requests(queue, 1);
  return true;
}

GrammarQueue::Job* GrammarQueue::first_waiting(Client& client) {
  const auto job = std::find_if(client.jobs.begin(), client.jobs.end(),
                                [](const Job& some) { return !some.running; });
  return job == client.jobs.end() ? nullptr : &*job;
}

bool GrammarQueue::may_begin(const Client& client) const {
  const int left = threads_ - (running_ - client.running);
  return client.running < std::max(1, left / 2);
}

GrammarQueue::Job* GrammarQueue::begin() {
  Client* chosen = nullptr;
  Job* job = nullptr;
  for (auto& [name, client] : clients_) {
    Job* const first = first_waiting(client);
    if (first != nullptr && may_begin(client) &&
        (chosen == nullptr || client.turn < chosen->turn)) {
      chosen = &client;
      job = first;
    }
  }
  if (job != nullptr) {
    job->running = true;
    ++chosen->running;
    ++running_;
    now_ = std::max(now_, chosen->turn);
    chosen->turn += kLeastTime;
    forget_idle();
  }
  return job;
}

std::vector<GrammarQueue::Waiter> GrammarQueue::end(Job* job, std::chrono::nanoseconds used) {
  Client& client = clients_.find(job->client)->second;
  std::vector<Waiter> waiters = std::move(job->waiters);
  change_requests(client, -std::ssize(waiters));
  client.turn += std::max<int64_t>(0, used.count() - kLeastTime);
  --client.running;
  --running_;
  remove(client, job->digest);
  forget_idle();
  return waiters;
}

// Requires: the job's requests are not counted any more.
void GrammarQueue::remove(Client& client, const std::string& digest) {
  const auto found = client.by_digest.find(digest);
  const auto job = found->second;
  client.bytes -= job->bytes;
  bytes_ -= job->bytes;
  client.by_digest.erase(found);
  client.jobs.erase(job);
}

void GrammarQueue::forget_idle() {
  std::erase_if(clients_, [this](const auto& client) {
    return client.second.jobs.empty() && client.second.turn <= now_;
  });
}

void GrammarQueue::change_requests(Client& client, int64_t by) {
  const auto counted = [&client] {
    return client.tenant ? std::min(client.requests, kFewRequests) : client.requests;
  };
  const int64_t before = counted();
  client.requests += by;
  requests_ += counted() - before;
}

std::vector<GrammarQueue::Late> GrammarQueue::take_late(Clock::time_point now) {
  std::vector<Late> late;
  for (auto& [name, client] : clients_) {
    for (auto job = client.jobs.begin(); job != client.jobs.end();) {
      const auto first =
          std::stable_partition(job->waiters.begin(), job->waiters.end(),
                                [&](const Waiter& waiter) { return waiter.deadline > now; });
      const int64_t gone = job->waiters.end() - first;
      std::transform(first, job->waiters.end(), std::back_inserter(late), [&](Waiter& waiter) {
        return Late{std::move(waiter.done), job->running};
      });
      job->waiters.erase(first, job->waiters.end());
      change_requests(client, -gone);
      const auto some = job++;
      if (some->waiters.empty() && !some->running) {
        remove(client, some->digest);
      }
    }
  }
  forget_idle();
  return late;
}

GrammarQueue::Clock::time_point GrammarQueue::first_deadline(Clock::time_point otherwise) const {
  Clock::time_point first = otherwise;
  for (const auto& [name, client] : clients_) {
    for (const Job& job : client.jobs) {
      for (const Waiter& waiter : job.waiters) {
        first = std::min(first, waiter.deadline);
      }
    }
  }
  return first;
}

std::vector<GrammarQueue::Waiter> GrammarQueue::take_all() {
  std::vector<Waiter> waiters;
  for (auto& [name, client] : clients_) {
    for (Job& job : client.jobs) {
      std::move(job.waiters.begin(), job.waiters.end(), std::back_inserter(waiters));
      job.waiters.clear();
    }
  }
  return waiters;
}

}  // namespace tessera
