#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// A thread that does for streams what the engine's must not: turn tokens into text, and begin to
// write.
class StreamWriter {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void write_pending() = 0;  // on the writer's thread
  };

  StreamWriter();
  ~StreamWriter();  // after what has been posted
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // Any thread, does not wait. Calls write_pending() once.
  void post(std::shared_ptr<Stream> stream);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<std::shared_ptr<Stream>> streams_;  // posted; guarded by mutex_
  bool stopping_ = false;                         // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera
