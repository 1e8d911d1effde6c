#pragma once

#include <grpcpp/server_context.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace tessera {

// Memory of an open call besides its messages. Measured: 17 KiB for each of 20,400 watches.
inline constexpr std::size_t kGrpcCallBytes = 20 << 10;

// Bounded number of calls that are open at once, on all connections. A call counts from its headers
// until gRPC has forgotten it, whether it has shown a key or not. Calls without a caller have a
// quarter: those of the health service, and refused ones whose client does not read.
//
// A call that has no caller, or whose message has not come, makes way for one more: the oldest of
// the connection that has the most of them is cancelled. So a health check is answered, and a
// request is taken, however many calls others begin and leave. Thread-safe.
class OpenCalls {
 public:
  // The place of a call; its end gives it back. The calls must outlive it.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept;
    Place& operator=(Place&& other) noexcept;
    ~Place() { release(); }

    // The call makes way for no other from now on, if it has a caller.
    void keep();
    // Requires: the call's context is valid still.
    void release();

   private:
    friend class OpenCalls;
    Place(OpenCalls& calls, bool has_caller, std::size_t number)
        : calls_(&calls), has_caller_(has_caller), number_(number) {}

    OpenCalls* calls_ = nullptr;
    bool has_caller_ = false;
    std::size_t number_ = 0;
  };

  // `bytes`: of memory for calls. There are at least 32.
  explicit OpenCalls(std::size_t bytes);

  // Returns: a place for a call; nothing if all calls with a caller are kept. A call without one
  // always gets a place.
  // Requires: the place is kept or released while `context` is valid.
  std::optional<Place> take(grpc::ServerContextBase& context, bool has_caller);

  std::size_t most() const { return anonymous_.most + called_.most; }
  std::size_t bytes() const;  // of the calls that are open now

 private:
  struct Waiting {
    grpc::ServerContextBase* context = nullptr;
    std::string peer;
  };
  struct Group {
    std::size_t most = 0;
    std::size_t kept = 0;
    std::map<std::size_t, Waiting> waiting;                // by number, so the oldest is first
    std::unordered_map<std::string, std::size_t> of_peer;  // of `waiting`
  };

  Group& group(bool has_caller) { return has_caller ? called_ : anonymous_; }
  static bool forget(Group& group, std::size_t number);
  static void cancel_one(Group& group);

  // Recursive, because gRPC may run the reaction to a cancellation on the thread that cancels, and
  // that releases a place.
  mutable std::recursive_mutex mutex_;
  // All guarded by mutex_.
  std::size_t last_ = 0;
  Group anonymous_;
  Group called_;
};

}  // namespace tessera
