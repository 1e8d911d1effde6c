#include "server/grammar/grammar_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {

using Clock = std::chrono::steady_clock;

struct GrammarStore::State {
  // A spec that is compiled, and its waiting requests.
  struct Job {
    struct Waiter {
      Done done;
      Clock::time_point deadline;
    };
    GrammarSpec spec;
    std::vector<Waiter> waiters;
    bool running = false;
  };
  struct Kept {
    GrammarSpec spec;
    CompiledGrammar compiled;
  };
  struct Answer {
    Done done;
    absl::StatusOr<Grammar> result;
  };

  std::unique_ptr<GrammarCompiler> compiler;
  GrammarLimits limits;
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Job> jobs;   // in order of arrival
  std::list<Kept> kept;  // used last comes first
  int64_t kept_bytes = 0;
  std::atomic<int64_t> requests = 0;  // that wait; changed under the mutex
  bool ends = false;
  std::vector<std::thread> threads;

  void compile_jobs();
  absl::StatusOr<CompiledGrammar> compile(const GrammarSpec& spec) const {
    const PacedWork paced(limits.engine, &requests);
    return compiler->compile(spec);
  }
  void watch();
  void keep(GrammarSpec spec, CompiledGrammar compiled);
  std::optional<Grammar> find(const GrammarSpec& spec);
  int64_t queued_bytes() const;
};

GrammarStore::GrammarStore(std::unique_ptr<GrammarCompiler> compiler, GrammarLimits limits)
    : state_(std::make_unique<State>()) {
  state_->compiler = std::move(compiler);
  state_->limits = limits;
  if (state_->compiler != nullptr) {
    for (int i = 0; i < limits.threads; ++i) {
      state_->threads.emplace_back([state = state_.get()] { state->compile_jobs(); });
    }
    state_->threads.emplace_back([state = state_.get()] { state->watch(); });
  }
}

GrammarStore::~GrammarStore() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
  for (const State::Job& job : state_->jobs) {
    for (const State::Job::Waiter& waiter : job.waiters) {
      waiter.done(absl::UnavailableError("the server is shutting down"));
    }
  }
}

void GrammarStore::get(const GrammarSpec& spec, Done done) {
  State& state = *state_;
  if (state.compiler == nullptr) {
    return done(absl::UnimplementedError(
        "this server is built without xgrammar, so it has no constrained decoding"));
  }
  std::unique_lock lock(state.mutex);
  if (std::optional<Grammar> known = state.find(spec)) {
    lock.unlock();
    return done(*std::move(known));
  }
  auto job = std::find_if(state.jobs.begin(), state.jobs.end(),
                          [&](const State::Job& other) { return other.spec == spec; });
  if (job == state.jobs.end()) {
    if (state.queued_bytes() + std::ssize(spec.text) > state.limits.queue_bytes) {
      lock.unlock();
      return done(absl::ResourceExhaustedError("too many grammars wait to be compiled"));
    }
    job = state.jobs.insert(state.jobs.end(), {.spec = spec, .waiters = {}});
  }
  job->waiters.push_back({std::move(done), Clock::now() + state.limits.patience});
  ++state.requests;
  lock.unlock();
  state.changed.notify_all();
}

int64_t GrammarStore::State::queued_bytes() const {
  int64_t bytes = 0;
  for (const Job& job : jobs) {
    constexpr int64_t kWaiter = 1 << 10;  // counts each waiting request too
    bytes += std::ssize(job.spec.text) + kWaiter * std::ssize(job.waiters);
  }
  return bytes;
}

std::optional<GrammarStore::Grammar> GrammarStore::State::find(const GrammarSpec& spec) {
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const Kept& other) { return other.spec == spec; });
  if (found == kept.end()) {
    return std::nullopt;
  }
  kept.splice(kept.begin(), kept, found);
  return found->compiled.grammar;
}

void GrammarStore::State::keep(GrammarSpec spec, CompiledGrammar compiled) {
  kept_bytes += compiled.bytes;
  kept.push_front({std::move(spec), std::move(compiled)});
  while (kept_bytes > limits.cache_bytes && kept.size() > 1) {
    kept_bytes -= kept.back().compiled.bytes;
    kept.pop_back();
  }
}

void GrammarStore::State::compile_jobs() {
  std::unique_lock lock(mutex);
  while (true) {
    const auto waiting = [&] {
      return std::find_if(jobs.begin(), jobs.end(), [](const Job& job) { return !job.running; });
    };
    changed.wait(lock, [&] { return ends || waiting() != jobs.end(); });
    if (ends) {
      return;
    }
    const auto job = waiting();
    if (job->waiters.empty()) {  // all of them have waited too long
      jobs.erase(job);
      continue;
    }
    job->running = true;
    lock.unlock();
    absl::StatusOr<CompiledGrammar> compiled = compile(job->spec);
    lock.lock();
    std::vector<Job::Waiter> waiters = std::move(job->waiters);
    requests -= std::ssize(waiters);
    if (compiled.ok()) {
      keep(std::move(job->spec), *compiled);
    }
    jobs.erase(job);
    lock.unlock();
    for (const Job::Waiter& waiter : waiters) {
      waiter.done(compiled.ok() ? absl::StatusOr<Grammar>(compiled->grammar)
                                : absl::StatusOr<Grammar>(compiled.status()));
    }
    lock.lock();
  }
}

// Answers requests that have waited too long. A compilation cannot be stopped: it goes on, and the
// other threads take the next specs.
void GrammarStore::State::watch() {
  std::unique_lock lock(mutex);
  while (!ends) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = now + limits.patience;
    std::vector<Answer> late;
    for (Job& job : jobs) {
      const auto first =
          std::stable_partition(job.waiters.begin(), job.waiters.end(),
                                [&](const Job::Waiter& waiter) { return waiter.deadline > now; });
      for (auto waiter = first; waiter != job.waiters.end(); ++waiter) {
        const auto patience = limits.patience.count();
        late.push_back({std::move(waiter->done),
                        job.running ? absl::InvalidArgumentError(
                                          fmt::format("takes more than {} ms to compile", patience))
                                    : absl::ResourceExhaustedError(fmt::format(
                                          "waited {} ms for other grammars", patience))});
      }
      requests -= job.waiters.end() - first;
      job.waiters.erase(first, job.waiters.end());
      for (const Job::Waiter& waiter : job.waiters) {
        next = std::min(next, waiter.deadline);
      }
    }
    if (late.empty()) {
      changed.wait_until(lock, next);
      continue;
    }
    lock.unlock();
    for (Answer& answer : late) {
      answer.done(std::move(answer.result));
    }
    lock.lock();
  }
}

}  // namespace tessera
