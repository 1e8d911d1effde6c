#include "server/grpc/stream_writer.h"

#include <utility>

namespace tessera {

StreamWriter::StreamWriter() : thread_([this] { run(); }) {}

StreamWriter::~StreamWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

void StreamWriter::post(std::shared_ptr<Stream> stream) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = streams_.empty();
    streams_.push_back(std::move(stream));
  }
  if (first) {
    posted_.notify_one();
  }
}

void StreamWriter::run() {
  std::vector<std::shared_ptr<Stream>> taken;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return stopping_ || !streams_.empty(); });
      if (streams_.empty()) {
        return;
      }
      taken.swap(streams_);
    }
    for (const std::shared_ptr<Stream>& stream : taken) {
      stream->write_pending();
    }
    taken.clear();
  }
}

}  // namespace tessera
