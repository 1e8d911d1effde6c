#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/conversation.h"

namespace tessera {

// A response that later requests may continue or fetch.
struct StoredResponse {
  std::vector<ChatMessage> messages;  // input and answer, with those of the responses before
  std::string body;                   // as it was sent

  std::size_t bytes() const;
};

// Responses of all clients, within a number of bytes. Each belongs to an owner, who alone sees it.
// When bytes are short, the owner with the most bytes loses the one that was used least recently.
// Thread-safe.
class ResponseStore {
 public:
  explicit ResponseStore(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  std::size_t max_bytes() const { return max_bytes_; }

  std::size_t bytes() const;  // of all responses

  // Drops responses until half of the bytes are left, because memory is short.
  void shrink();

  // Keeps a response, unless it is larger than the store.
  void put(const std::string& owner, const std::string& id, StoredResponse response);

  // Returns: the response; null if there is none of this owner.
  std::shared_ptr<const StoredResponse> find(const std::string& owner, const std::string& id);

  // Returns: false if there is none of this owner.
  bool erase(const std::string& owner, const std::string& id);

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    std::size_t bytes = 0;
  };
  using Entries = std::list<Entry>;  // the most recently used first
  struct Owner {
    Entries entries;
    std::map<std::string, Entries::iterator, std::less<>> by_id;
    std::size_t bytes = 0;
  };

  void remove(const std::string& owner, Entries::iterator entry);
  void make_room(std::size_t bytes);

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;  // guards the fields below
  std::map<std::string, Owner, std::less<>> owners_;
  std::size_t bytes_ = 0;
};

}  // namespace tessera
