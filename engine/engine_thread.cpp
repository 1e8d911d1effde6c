#include "engine/engine_thread.h"

#include <utility>

#include "base/check.h"

namespace tessera {

void EngineThread::start(std::function<void()> loop) {
  const std::lock_guard lock(mutex_);
  TESSERA_CHECK(!stopped_ && !thread_.joinable(), "an engine is started once");
  thread_ = std::thread(std::move(loop));
}

bool EngineThread::stop() {
  const std::lock_guard lock(mutex_);
  const bool joined = thread_.joinable();
  if (joined) {
    thread_.join();
  }
  return !std::exchange(stopped_, true) && !joined;
}

}  // namespace tessera
