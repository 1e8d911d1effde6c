#pragma once

namespace tessera {

// Tells the reader of an answer that there is something new for it. Any thread, at any time, also
// after the reader was destroyed. Never blocks.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

}  // namespace tessera
