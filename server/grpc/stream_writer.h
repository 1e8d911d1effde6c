#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// Thread that detokenizes and starts writes for streams. The engine thread must not do this work.
class StreamWriter {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void write_pending() = 0;  // on the writer's thread
  };

  StreamWriter();
  ~StreamWriter();  // serves all posted streams first
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // Any thread; does not block. The writer's thread calls write_pending() once for each post().
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
