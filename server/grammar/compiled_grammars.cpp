#include "server/grammar/compiled_grammars.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <utility>

#include "engine/retry_after.h"

namespace tessera {
namespace {

// Bytes of a grammar besides those that the library counts: objects, digest, containers.
constexpr int64_t kEntryBytes = 4 << 10;

// Bytes that are not worth a second call of shrink().
constexpr int64_t kLittle = 1 << 20;

constexpr std::chrono::seconds kRetry{1};

}  // namespace

std::string digest_of(const GrammarSpec& spec) {
  std::string digest(1 + SHA256_DIGEST_LENGTH, static_cast<char>(spec.kind));
  SHA256(reinterpret_cast<const unsigned char*>(spec.text.data()), spec.text.size(),
         reinterpret_cast<unsigned char*>(digest.data()) + 1);
  return digest;
}

// Bytes of all grammars that exist, by client.
struct CompiledGrammars::Live {
  // Returns: false, with nothing taken, if the client would have more than half of the bytes
  // that the others leave of `max_bytes`.
  bool take(const std::string& client, int64_t bytes, int64_t max_bytes) {
    const std::lock_guard lock(mutex);
    const auto found = of_client.find(client);
    const int64_t mine = found == of_client.end() ? 0 : found->second;
    if (mine + bytes > (max_bytes - (total - mine)) / 2) {
      return false;
    }
    of_client[client] += bytes;
    total += bytes;
    return true;
  }

  void give_back(const std::string& client, int64_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = of_client.find(client);
    found->second -= bytes;
    total -= bytes;
    if (found->second == 0) {
      of_client.erase(found);
    }
  }

  std::mutex mutex;
  std::map<std::string, int64_t, std::less<>> of_client;
  int64_t total = 0;
};

// A grammar that gives its bytes back when the last request that uses it has ended.
class CompiledGrammars::Counted final : public TokenGrammar {
 public:
  Counted(Grammar grammar, std::shared_ptr<Live> live, std::string client, int64_t bytes)
      : grammar_(std::move(grammar)),
        live_(std::move(live)),
        client_(std::move(client)),
        bytes_(bytes) {}
  ~Counted() override {
    grammar_.reset();
    live_->give_back(client_, bytes_);
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  std::unique_ptr<TokenConstraint> begin() const override { return grammar_->begin(); }

 private:
  Grammar grammar_;
  const std::shared_ptr<Live> live_;
  const std::string client_;
  const int64_t bytes_;
};

CompiledGrammars::CompiledGrammars(int64_t max_bytes)
    : max_bytes_(max_bytes), live_(std::make_shared<Live>()) {}

int64_t CompiledGrammars::bytes() const {
  const std::lock_guard lock(live_->mutex);
  return live_->total;
}

CompiledGrammars::Grammar CompiledGrammars::find(const std::string& digest) {
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) {
    return nullptr;
  }
  auto& [client, kept] = found->second;
  client->kept.splice(client->kept.begin(), client->kept, kept);
  return kept->grammar;
}

absl::StatusOr<CompiledGrammars::Grammar> CompiledGrammars::add(const std::string& client,
                                                                const std::string& digest,
                                                                CompiledGrammar compiled) {
  const int64_t bytes = compiled.bytes + kEntryBytes;
  if (bytes > max_bytes_ / 2) {
    return absl::InvalidArgumentError(
        fmt::format("takes {} bytes of memory when it is compiled, at most {} are allowed", bytes,
                    max_bytes_ / 2));
  }
  while (!live_->take(client, bytes, max_bytes_)) {
    const auto mine = clients_.find(client);
    if (mine == clients_.end()) {
      return with_retry_after(
          absl::ResourceExhaustedError(
              "the grammars of requests that wait or run leave no memory for this one"),
          kRetry);
    }
    drop_last(mine);
  }
  Grammar grammar = std::make_shared<Counted>(std::move(compiled.grammar), live_, client, bytes);
  if (by_digest_.contains(digest)) {  // another client has asked for the same one meanwhile
    return grammar;
  }
  Client& owner = clients_[client];
  owner.kept.push_front({digest, grammar, bytes});
  owner.bytes += bytes;
  kept_bytes_ += bytes;
  by_digest_[digest] = {&owner, owner.kept.begin()};
  shrink_to(max_bytes_ / 2);
  return grammar;
}

void CompiledGrammars::shrink() {
  shrink_to(kept_bytes_ > kLittle ? kept_bytes_ / 2 : 0);
}

void CompiledGrammars::shrink_to(int64_t bytes) {
  while (kept_bytes_ > bytes) {
    drop_last(std::max_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
      return a.second.bytes < b.second.bytes;
    }));
  }
}

void CompiledGrammars::drop_last(std::map<std::string, Client, std::less<>>::iterator client) {
  Client& owner = client->second;
  const Kept& last = owner.kept.back();
  owner.bytes -= last.bytes;
  kept_bytes_ -= last.bytes;
  by_digest_.erase(last.digest);
  owner.kept.pop_back();
  if (owner.kept.empty()) {
    clients_.erase(client);
  }
}

}  // namespace tessera
