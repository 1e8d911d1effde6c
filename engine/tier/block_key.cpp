#include "engine/tier/block_key.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace tessera {

KeyChain::KeyChain(std::string_view fingerprint) : context_(EVP_MD_CTX_new()) {
  TESSERA_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1,
                "OpenSSL has SHA-256");
  fingerprint_ = digest(std::as_bytes(std::span(fingerprint)), {});
}

KeyChain::~KeyChain() {
  EVP_MD_CTX_free(context_);
}

BlockKey KeyChain::root(std::string_view salt, uint8_t level) {
  BlockKey before = fingerprint_;
  before.bytes[0] ^= static_cast<std::byte>(level);
  return digest(before.bytes, std::as_bytes(std::span(salt)));
}

BlockKey KeyChain::next(const BlockKey& before, std::span<const int32_t> tokens) {
  return digest(before.bytes, std::as_bytes(tokens));
}

BlockKey KeyChain::digest(std::span<const std::byte> first, std::span<const std::byte> second) {
  BlockKey key;
  unsigned int size = 0;
  // Without a type, the context keeps the one of the constructor and allocates nothing.
  TESSERA_CHECK(EVP_DigestInit_ex(context_, nullptr, nullptr) == 1 &&
                    EVP_DigestUpdate(context_, first.data(), first.size()) == 1 &&
                    EVP_DigestUpdate(context_, second.data(), second.size()) == 1 &&
                    EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(key.bytes.data()),
                                       &size) == 1 &&
                    size == key.bytes.size(),
                "SHA-256 cannot fail");
  return key;
}

}  // namespace tessera
