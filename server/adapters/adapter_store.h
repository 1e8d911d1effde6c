#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace tessera {

// Adapters (LoRA) by the names that requests ask for. A name stays until it is removed. The
// matrices are in memory while there is room: of those that no request uses, the longest unused
// leave first, and are read again from their files when a request names them. A thread of the store
// reads them, so neither steps nor other requests wait. It also gives back the memory of adapters
// that were removed while requests used them. Thread-safe.
class AdapterStore {
 public:
  using Adapter = std::shared_ptr<const LoraAdapter>;
  using Done = std::function<void(absl::StatusOr<Adapter>)>;

  static constexpr std::size_t kMaxNames = 4096;
  static constexpr std::size_t kMaxName = 256;   // bytes
  static constexpr std::size_t kMaxPath = 4096;  // bytes

  struct Options {
    int64_t memory = 0;  // bytes of all adapters, also of those in use
    bool grows = false;  // names come and go while the server runs
  };

  // engine: not owned; outlives this.
  AdapterStore(const Engine& engine, const Options& options);
  ~AdapterStore();  // requests that wait are told `Unavailable`
  AdapterStore(const AdapterStore&) = delete;
  AdapterStore& operator=(const AdapterStore&) = delete;

  // Adds a name and reads its adapter. Calls `done` once, on a thread of the store or on the
  // caller's; it must not block, nor call the store. After an error the name is not there.
  // Errors: AlreadyExists; InvalidArgument for an empty or long name, or an adapter larger than all
  // memory; ResourceExhausted for too many names, or if adapters in use leave no room for a
  // second; those of Engine::load_adapter.
  void add(const std::string& name, std::filesystem::path path, Done done);

  // Removes a name. Requests that have its adapter keep it to their end.
  // Errors: NotFound.
  absl::Status remove(std::string_view name);

  // Returns: the adapter of a name, which was so used last; null if it is not in memory.
  // Errors: NotFound.
  absl::StatusOr<Adapter> find(std::string_view name);

  // The same, but reads it if it is not in memory. `done` as in add().
  // Errors: NotFound; ResourceExhausted with the time of a retry, if adapters in use leave no room
  // for a second; Unavailable if its files can no longer be read.
  void get(const std::string& name, Done done);

  bool has(std::string_view name) const;
  std::vector<std::string> names() const;  // sorted
  int64_t bytes() const;                   // of all adapters in memory
  bool grows() const { return options_.grows; }

  // Lets go of half of the adapters that no request uses, because memory is short.
  void shrink();

 private:
  struct Entry {
    uint64_t number = 0;  // tells it from a later one of the same name
    std::filesystem::path path;
    bool added = false;   // it was read once
    Adapter adapter;      // null: not in memory
    uint64_t used = 0;    // time of its last use
    bool queued = false;  // or being read
    std::vector<Done> waiting;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  Entry* find_added(std::string_view name);
  void queue(const std::string& name, Entry& entry, Done done);
  Adapter touch(Entry& entry);
  void run();
  absl::StatusOr<Adapter> read(const std::filesystem::path& path);
  absl::Status make_room(int64_t bytes);
  void settle(const std::string& name, uint64_t number, absl::StatusOr<Adapter> result);
  Adapter take_unused();
  int64_t held() const;
  std::vector<Adapter> take_retired();

  const Engine& engine_;
  const Options options_;
  mutable std::mutex mutex_;  // guards the fields below, except thread_
  std::condition_variable changed_;
  Entries entries_;
  std::vector<Adapter> retired_;  // removed, maybe in use
  std::deque<std::string> queue_;
  uint64_t last_number_ = 0;
  uint64_t now_ = 0;  // counts uses
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera
