#include "server/grammar/grammar_store.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/retry_after.h"
#include "server/base/thread_time.h"
#include "server/grammar/compiled_grammars.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

absl::Status busy(const std::string& message) {
  return with_retry_after(absl::ResourceExhaustedError(message), std::chrono::seconds(1));
}

}  // namespace

GrammarLimits grammar_limits(std::size_t bytes, const EngineLoad& engine) {
  const auto part = static_cast<int64_t>(bytes / kMaskShare);
  GrammarLimits limits;
  limits.grammar_bytes = static_cast<int64_t>(bytes) - 2 * part;
  limits.queue_bytes = part;
  limits.engine = engine;
  return limits;
}

struct GrammarStore::State {
  State(std::unique_ptr<GrammarCompiler> some_compiler, const GrammarLimits& some_limits)
      : compiler(std::move(some_compiler)),
        limits(some_limits),
        compiled(limits.grammar_bytes),
        queue(limits.threads, limits.queue_bytes) {}

  const std::unique_ptr<GrammarCompiler> compiler;
  const GrammarLimits limits;
  mutable std::mutex mutex;  // guards the fields below, except threads
  std::condition_variable changed;
  std::condition_variable ended;
  CompiledGrammars compiled;
  GrammarQueue queue;
  bool ends = false;
  std::vector<std::thread> threads;

  void compile_jobs();
  absl::StatusOr<Grammar> compile(const GrammarQueue::Job& job, std::unique_lock<std::mutex>& lock,
                                  nanoseconds& used);
  void watch();
};

GrammarStore::GrammarStore(std::unique_ptr<GrammarCompiler> compiler, GrammarLimits limits)
    : state_(std::make_unique<State>(std::move(compiler), limits)) {
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
  state_->ended.notify_all();
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
  for (const GrammarQueue::Waiter& waiter : state_->queue.take_all()) {
    waiter.done(absl::UnavailableError("the server is shutting down"));
  }
}

void GrammarStore::get(const GrammarClient& client, const GrammarSpec& spec, Done done) {
  State& state = *state_;
  if (state.compiler == nullptr) {
    return done(absl::UnimplementedError(
        "this server is built without xgrammar, so it has no constrained decoding"));
  }
  const std::string digest = digest_of(spec);
  GrammarQueue::Waiter waiter{std::move(done), Clock::now() + state.limits.patience};
  std::unique_lock lock(state.mutex);
  if (Grammar known = state.compiled.find(digest)) {
    lock.unlock();
    return waiter.done(std::move(known));
  }
  if (!state.queue.add(client, digest, spec, waiter)) {
    lock.unlock();
    return waiter.done(busy("too many grammars wait to be compiled"));
  }
  lock.unlock();
  state.changed.notify_one();
}

void GrammarStore::shrink() {
  const std::lock_guard lock(state_->mutex);
  state_->compiled.shrink();
}

int64_t GrammarStore::bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->compiled.bytes() + state_->queue.bytes();
}

int64_t GrammarStore::compiling_bytes() const {
  return state_->compiler == nullptr ? 0 : state_->compiler->compiling_bytes();
}

int64_t GrammarStore::mask_bytes() const {
  return state_->compiler == nullptr ? 0 : state_->compiler->mask_bytes();
}

void GrammarStore::State::compile_jobs() {
  std::unique_lock lock(mutex);
  while (true) {
    GrammarQueue::Job* job = nullptr;
    changed.wait(lock, [&] { return ends || (job = queue.begin()) != nullptr; });
    if (job == nullptr) {
      return;
    }
    nanoseconds used{0};
    absl::StatusOr<Grammar> grammar = compile(*job, lock, used);
    const std::vector<GrammarQueue::Waiter> waiters = queue.end(job, used);
    lock.unlock();
    changed.notify_all();  // the client may use a thread again
    // The last waiter takes this thread's reference: its client may end the request and ask again
    // before this thread goes on, and a grammar that is held counts as one in use.
    for (const GrammarQueue::Waiter& waiter : waiters) {
      waiter.done(&waiter == &waiters.back() ? std::move(grammar) : grammar);
    }
    lock.lock();
  }
}

// Compiles without the lock, which it takes again. used: receives the CPU time.
absl::StatusOr<GrammarStore::Grammar> GrammarStore::State::compile(
    const GrammarQueue::Job& job, std::unique_lock<std::mutex>& lock, nanoseconds& used) {
  if (Grammar known = compiled.find(job.digest)) {  // another client has asked for it meanwhile
    return known;
  }
  lock.unlock();
  const int64_t begin = thread_nanoseconds();
  absl::StatusOr<CompiledGrammar> made = [&] {
    const PacedWork paced(limits.engine, &queue.requests());
    return compiler->compile(job.spec);
  }();
  used = nanoseconds(thread_nanoseconds() - begin);
  lock.lock();
  if (!made.ok()) {
    return made.status();
  }
  return compiled.add(job.client, job.digest, *std::move(made));
}

// Answers requests that have waited too long. A compilation cannot be stopped: it goes on, and the
// other threads take the next specs. All requests have the same patience, so a new one is never
// the next to be late, unless none waits.
void GrammarStore::State::watch() {
  std::unique_lock lock(mutex);
  while (!ends) {
    const Clock::time_point now = Clock::now();
    std::vector<GrammarQueue::Late> late = queue.take_late(now);
    if (late.empty()) {
      ended.wait_until(lock, queue.first_deadline(now + limits.patience));
      continue;
    }
    lock.unlock();
    const auto patience = limits.patience.count();
    for (const GrammarQueue::Late& one : late) {
      one.done(one.running ? absl::InvalidArgumentError(
                                 fmt::format("takes more than {} ms to compile", patience))
                           : busy(fmt::format("waited {} ms for other grammars", patience)));
    }
    lock.lock();
  }
}

}  // namespace tessera
