#include "server/responses/response_store.h"

#include <algorithm>
#include <utility>

#include "server/request/request_bytes.h"

namespace tessera {

std::size_t StoredResponse::bytes() const {
  return message_bytes(messages) + body.size();
}

void ResponseStore::put(const std::string& owner, const std::string& id, StoredResponse response) {
  constexpr std::size_t kEntryBytes = 512;  // of the containers
  const std::size_t bytes = response.bytes() + id.size() + kEntryBytes;
  if (bytes > max_bytes_) {
    return;
  }
  auto shared = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  Owner& mine = owners_[owner];
  mine.entries.push_front({id, std::move(shared), bytes});
  mine.by_id[id] = mine.entries.begin();
  mine.bytes += bytes;
  bytes_ += bytes;
  make_room(max_bytes_);
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& owner,
                                                          const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto mine = owners_.find(owner);
  if (mine == owners_.end()) {
    return nullptr;
  }
  Owner& found = mine->second;
  const auto entry = found.by_id.find(id);
  if (entry == found.by_id.end()) {
    return nullptr;
  }
  found.entries.splice(found.entries.begin(), found.entries, entry->second);
  return entry->second->response;
}

bool ResponseStore::erase(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto mine = owners_.find(owner);
  if (mine == owners_.end() || !mine->second.by_id.contains(id)) {
    return false;
  }
  remove(owner, mine->second.by_id.find(id)->second);
  return true;
}

void ResponseStore::remove(const std::string& owner, Entries::iterator entry) {
  Owner& mine = owners_.find(owner)->second;
  bytes_ -= entry->bytes;
  mine.bytes -= entry->bytes;
  mine.by_id.erase(entry->id);
  mine.entries.erase(entry);
  if (mine.entries.empty()) {
    owners_.erase(owner);
  }
}

std::size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::shrink() {
  const std::lock_guard lock(mutex_);
  make_room(bytes_ / 2);
}

// Drops responses until there are so many bytes at most.
void ResponseStore::make_room(std::size_t bytes) {
  while (bytes_ > bytes) {
    const auto largest = std::max_element(
        owners_.begin(), owners_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    remove(std::string(largest->first), std::prev(largest->second.entries.end()));
  }
}

}  // namespace tessera
