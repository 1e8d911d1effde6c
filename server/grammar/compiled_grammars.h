#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "engine/token_grammar.h"
#include "server/grammar/grammar_compiler.h"

namespace tessera {

// Returns: the SHA-256 of a spec, by which its compiled grammar is found. Takes time in proportion
// to the text.
std::string digest_of(const GrammarSpec& spec);

// The compiled grammars of all clients, within a number of bytes: those that are kept for later
// requests, and those in use by requests. Each belongs to the client whose request compiled it. A
// client may have half of the bytes that the others leave, so that none has them all. Used under
// one mutex; the grammars themselves may end on any thread.
class CompiledGrammars {
 public:
  using Grammar = std::shared_ptr<const TokenGrammar>;

  // max_bytes: of all grammars. A half of it is kept at most.
  explicit CompiledGrammars(int64_t max_bytes);

  // Returns: null if it is not kept.
  Grammar find(const std::string& digest);

  // Keeps a grammar. If bytes are short, the client with the most of them loses the one that was
  // used least recently.
  // Errors: InvalidArgument if one client may never have so many bytes. ResourceExhausted if
  // grammars in use leave this client too few.
  absl::StatusOr<Grammar> add(const std::string& client, const std::string& digest,
                              CompiledGrammar compiled);

  // Drops half of the grammars that are kept, by bytes, and all of them if they are few.
  void shrink();

  int64_t bytes() const;  // kept or in use
  int64_t kept_bytes() const { return kept_bytes_; }

 private:
  class Counted;
  struct Live;
  struct Kept {
    std::string digest;
    Grammar grammar;
    int64_t bytes = 0;
  };
  struct Client {
    std::list<Kept> kept;  // the most recently used first
    int64_t bytes = 0;
  };
  struct Place {
    Client* client;
    std::list<Kept>::iterator kept;
  };

  void drop_last(std::map<std::string, Client, std::less<>>::iterator client);
  void shrink_to(int64_t bytes);

  const int64_t max_bytes_;
  const std::shared_ptr<Live> live_;  // outlives this with the last grammar in use
  std::map<std::string, Client, std::less<>> clients_;  // those with kept grammars
  std::unordered_map<std::string, Place> by_digest_;
  int64_t kept_bytes_ = 0;
};

}  // namespace tessera
