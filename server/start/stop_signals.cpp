#include "server/start/stop_signals.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace tessera {
namespace {

constexpr int kReceived[] = {SIGTERM, SIGINT, SIGHUP};

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kReceived) {
    sigaddset(&set, signal);
  }
  return set;
}

// Threads of libraries may leave the signals unblocked, as those of the CUDA driver do. Linux may
// deliver a signal to such a thread, which passes it on.
std::atomic<bool> listening = false;
pthread_t listener;

void pass_on(int signal) {
  if (listening) {
    pthread_kill(listener, signal);
  }
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A program that rotates logs ends no server.
  for (const int ignored : {SIGPIPE, SIGUSR1, SIGUSR2}) {
    std::signal(ignored, SIG_IGN);
  }
  thread_ = std::thread([this] { listen(); });
  listener = thread_.native_handle();
  listening = true;
  struct sigaction action {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  for (const int signal : kReceived) {
    sigaction(signal, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  listening = false;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignals::listen() {
  const sigset_t set = stop_signals();
  while (true) {
    int signal = 0;
    sigwait(&set, &signal);
    if (signal == SIGHUP) {
      const std::lock_guard lock(reload_mutex_);
      if (reload_) {
        reload_();
      }
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return;
    }
    if (!serving_) {
      std::_Exit(EXIT_SUCCESS);
    }
    ++pending_;
    came_.notify_one();
  }
}

void StopSignals::wait() {
  std::unique_lock lock(mutex_);
  serving_ = true;
  came_.wait(lock, [this] { return pending_ > 0; });
  --pending_;
}

void StopSignals::on_hangup(std::function<void()> reload) {
  const std::lock_guard lock(reload_mutex_);
  reload_ = std::move(reload);
}

void StopSignals::ignore() {
  const std::lock_guard lock(mutex_);
  serving_ = true;
}

bool StopSignals::wait_for(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  serving_ = true;
  if (!came_.wait_for(lock, timeout, [this] { return pending_ > 0; })) {
    return false;
  }
  --pending_;
  return true;
}

}  // namespace tessera
