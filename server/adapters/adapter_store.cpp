#include "server/adapters/adapter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "engine/retry_after.h"
#include "models/lora/adapter.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kRetiredPoll{100};
constexpr std::chrono::seconds kRoomRetry{1};
// A client may ask for another adapter as soon as its answer is complete. The answer's request lets
// go of its adapter some moments later, so a lack of room is not told at once.
constexpr std::chrono::seconds kRoomWait{1};
constexpr std::chrono::milliseconds kRoomPoll{2};

absl::Status no_such_adapter(std::string_view name) {
  return absl::NotFoundError(
      fmt::format("there is no adapter '{}'", name.substr(0, AdapterStore::kMaxName)));
}

absl::Status check_texts(const std::string& name, const std::filesystem::path& path) {
  if (name.empty() || name.size() > AdapterStore::kMaxName) {
    return absl::InvalidArgumentError(fmt::format(
        "the name of an adapter has 1 to {} bytes, not {}", AdapterStore::kMaxName, name.size()));
  }
  const std::size_t bytes = path.native().size();
  return bytes > 0 && bytes <= AdapterStore::kMaxPath
             ? absl::OkStatus()
             : absl::InvalidArgumentError(fmt::format("the path of an adapter has 1 to {} bytes, "
                                                      "not {}",
                                                      AdapterStore::kMaxPath, bytes));
}

}  // namespace

AdapterStore::AdapterStore(const Engine& engine, const Options& options)
    : engine_(engine), options_(options), thread_([this] { run(); }) {}

AdapterStore::~AdapterStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (auto& [name, entry] : entries_) {
    for (const Done& done : entry.waiting) {
      done(absl::UnavailableError("the server stops"));
    }
  }
}

void AdapterStore::add(const std::string& name, std::filesystem::path path, Done done) {
  absl::Status status = check_texts(name, path);
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    if (entries_.size() >= kMaxNames) {
      status = absl::ResourceExhaustedError(
          fmt::format("there are {} adapters, the most that a server has", kMaxNames));
    } else if (const auto [entry, fresh] = entries_.try_emplace(name); fresh) {
      entry->second.number = ++last_number_;
      entry->second.path = std::move(path);
      return queue(name, entry->second, std::move(done));
    } else {
      status = absl::AlreadyExistsError(fmt::format("there is an adapter '{}' already", name));
    }
  }
  done(std::move(status));
}

absl::Status AdapterStore::remove(std::string_view name) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || !found->second.added) return no_such_adapter(name);
    waiting = std::move(found->second.waiting);
    if (found->second.adapter != nullptr) retired_.push_back(std::move(found->second.adapter));
    entries_.erase(found);
  }
  changed_.notify_all();
  for (const Done& done : waiting) done(no_such_adapter(name));
  return absl::OkStatus();
}

absl::StatusOr<AdapterStore::Adapter> AdapterStore::find(std::string_view name) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find_added(name);
  return entry == nullptr ? absl::StatusOr<Adapter>(no_such_adapter(name)) : touch(*entry);
}

void AdapterStore::get(const std::string& name, Done done) {
  absl::StatusOr<Adapter> found = no_such_adapter(name);
  {
    const std::lock_guard lock(mutex_);
    if (Entry* const entry = find_added(name)) {
      if (entry->adapter == nullptr) return queue(name, *entry, std::move(done));
      found = touch(*entry);
    }
  }
  done(std::move(found));
}

bool AdapterStore::has(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.added;
}

std::vector<std::string> AdapterStore::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.added) names.push_back(name);
  }
  return names;
}

int64_t AdapterStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return held();
}

void AdapterStore::shrink() {
  std::vector<Adapter> dropped;  // freed without the mutex
  const std::lock_guard lock(mutex_);
  const int64_t goal = held() / 2;
  while (held() > goal) {
    Adapter unused = take_unused();
    if (unused == nullptr) break;
    dropped.push_back(std::move(unused));
  }
}

// ---- with the mutex

AdapterStore::Entry* AdapterStore::find_added(std::string_view name) {
  const auto found = entries_.find(name);
  return found == entries_.end() || !found->second.added ? nullptr : &found->second;
}

AdapterStore::Adapter AdapterStore::touch(Entry& entry) {
  entry.used = ++now_;
  return entry.adapter;
}

void AdapterStore::queue(const std::string& name, Entry& entry, Done done) {
  entry.waiting.push_back(std::move(done));
  if (!std::exchange(entry.queued, true)) {
    queue_.push_back(name);
    changed_.notify_all();
  }
}

int64_t AdapterStore::held() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_) {
    bytes += entry.adapter == nullptr ? 0 : entry.adapter->bytes();
  }
  for (const Adapter& adapter : retired_) bytes += adapter->bytes();
  return bytes;
}

// Returns: the longest unused of the adapters that no request has; null if there is none. Requests
// get theirs under the mutex, so the count of one that has a single owner stays.
AdapterStore::Adapter AdapterStore::take_unused() {
  Entry* oldest = nullptr;
  for (auto& [name, entry] : entries_) {
    if (entry.adapter.use_count() == 1 && (oldest == nullptr || entry.used < oldest->used)) {
      oldest = &entry;
    }
  }
  return oldest == nullptr ? nullptr : std::exchange(oldest->adapter, nullptr);
}

// Returns: the retired adapters that no request has any more, to be freed without the mutex.
std::vector<AdapterStore::Adapter> AdapterStore::take_retired() {
  const auto unused = std::partition(retired_.begin(), retired_.end(), [](const Adapter& adapter) {
    return adapter.use_count() > 1;
  });
  std::vector<Adapter> taken(std::make_move_iterator(unused),
                             std::make_move_iterator(retired_.end()));
  retired_.erase(unused, retired_.end());
  return taken;
}

// ---- the thread

void AdapterStore::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<Adapter> freed = take_retired();
    if (!freed.empty()) {
      lock.unlock();
      freed.clear();
      lock.lock();
      continue;
    }
    if (queue_.empty()) {
      if (retired_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, kRetiredPoll);
      }
      continue;
    }
    const std::string name = std::move(queue_.front());
    queue_.pop_front();
    const auto found = entries_.find(name);
    if (found == entries_.end() || !found->second.queued) continue;
    const uint64_t number = found->second.number;
    const std::filesystem::path path = found->second.path;
    lock.unlock();
    settle(name, number, read(path));
    lock.lock();
  }
}

absl::StatusOr<AdapterStore::Adapter> AdapterStore::read(const std::filesystem::path& path) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, engine_.measure_adapter(path));
  TESSERA_RETURN_IF_ERROR(make_room(bytes));
  return engine_.load_adapter(path);
}

absl::Status AdapterStore::make_room(int64_t bytes) {
  if (bytes > options_.memory) {
    return absl::InvalidArgumentError(
        fmt::format("the adapter takes {} bytes, but --lora-memory is {}", bytes, options_.memory));
  }
  const auto deadline = std::chrono::steady_clock::now() + kRoomWait;
  std::vector<Adapter> dropped;  // freed without the mutex
  std::unique_lock lock(mutex_);
  while (held() + bytes > options_.memory) {
    if (std::vector<Adapter> retired = take_retired(); !retired.empty()) {
      std::ranges::move(retired, std::back_inserter(dropped));
      continue;
    }
    Adapter unused = take_unused();
    if (unused == nullptr && !stopping_ && std::chrono::steady_clock::now() < deadline) {
      changed_.wait_for(lock, kRoomPoll);
      continue;
    }
    if (unused == nullptr) {
      return with_retry_after(
          absl::ResourceExhaustedError(fmt::format(
              "the adapters in use leave no room for another of {} bytes: --lora-memory is {}",
              bytes, options_.memory)),
          kRoomRetry);
    }
    dropped.push_back(std::move(unused));
  }
  return absl::OkStatus();
}

// Tells the result of a read to those who wait for it.
void AdapterStore::settle(const std::string& name, uint64_t number,
                          absl::StatusOr<Adapter> result) {
  std::vector<Done> waiting;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second.number != number) return;  // it was removed
    Entry& entry = found->second;
    waiting = std::move(entry.waiting);
    entry.waiting.clear();
    entry.queued = false;
    if (result.ok()) {
      entry.added = true;
      entry.adapter = *result;
      entry.used = ++now_;
    } else if (!entry.added) {
      entries_.erase(found);
    } else if (!absl::IsResourceExhausted(result.status())) {
      result = absl::UnavailableError(fmt::format("the adapter '{}' can no longer be read: {}",
                                                  name, std::string(result.status().message())));
    }
  }
  // The last one gets the store's own reference, so that an adapter that none keeps is unused.
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    waiting[i](i + 1 < waiting.size() ? result : std::move(result));
  }
}

}  // namespace tessera
