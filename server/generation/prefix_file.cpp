#include "server/generation/prefix_file.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "server/request/request_limits.h"

namespace tessera {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'A', 'P', 'F', 'X', '1'};

struct PartHead {
  std::array<char, 8> magic = kMagic;
  uint64_t bytes = 0;
  std::array<std::byte, 32> fingerprint = {};
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  uint32_t block_tokens = 0;
  uint32_t root_level = 0;
  uint32_t salt_bytes = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(PartHead) == 72);

using Digest = std::array<unsigned char, 32>;

Digest digest_of_part(std::string_view bytes) {
  Digest digest;
  unsigned int size = 0;
  TESSERA_CHECK(
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1 &&
          size == digest.size(),
      "SHA-256 cannot fail");
  return digest;
}

template <class T>
void append_bytes(const T* values, std::size_t count, std::string& out) {
  out.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

}  // namespace

void print_prefix_part(const PrefixFilePart& part, std::string& out) {
  const std::size_t begin = out.size();
  const PartHead head{.bytes = sizeof(PartHead) + part.salt.size() +
                               part.tokens.size() * sizeof(int32_t) + part.records.size() +
                               sizeof(Digest),
                      .fingerprint = part.fingerprint.bytes,
                      .first_block = static_cast<uint32_t>(part.first_block),
                      .blocks = static_cast<uint32_t>(part.blocks),
                      .block_tokens = static_cast<uint32_t>(part.block_tokens),
                      .root_level = part.root_level,
                      .salt_bytes = static_cast<uint32_t>(part.salt.size())};
  out.reserve(begin + head.bytes);
  append_bytes(&head, 1, out);
  out += part.salt;
  append_bytes(part.tokens.data(), part.tokens.size(), out);
  append_bytes(part.records.data(), part.records.size(), out);
  const Digest digest = digest_of_part(std::string_view(out).substr(begin));
  append_bytes(digest.data(), digest.size(), out);
}

absl::StatusOr<PrefixFilePart> take_prefix_part(std::string_view& file) {
  PartHead head;
  if (file.size() < sizeof(head) + sizeof(Digest) ||
      std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    return absl::InvalidArgumentError("the body is not a file of POST /v1/cache/export");
  }
  std::memcpy(&head, file.data(), sizeof(head));
  const uint64_t tokens = (uint64_t{head.first_block} + head.blocks) * head.block_tokens;
  const uint64_t least = sizeof(head) + sizeof(Digest) + head.salt_bytes;
  if (head.bytes > file.size() || head.bytes < least) {
    return absl::InvalidArgumentError("the file of a prefix is cut off, or damaged");
  }
  const std::string_view part = file.substr(0, head.bytes);
  const std::string_view content = part.substr(0, part.size() - sizeof(Digest));
  const Digest digest = digest_of_part(content);
  if (std::memcmp(digest.data(), part.data() + content.size(), digest.size()) != 0) {
    return absl::InvalidArgumentError("the file of a prefix is damaged: its checksum differs");
  }
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max() / sizeof(int32_t);
  const bool sound = head.zero == 0 && head.blocks > 0 && head.block_tokens > 0 &&
                     head.block_tokens <= kMost && head.root_level <= 255 &&
                     head.salt_bytes <= kMaxSalt && tokens <= kMost &&
                     tokens * sizeof(int32_t) <= head.bytes - least;
  if (!sound) {
    return absl::InvalidArgumentError("the file of a prefix contradicts itself");
  }
  PrefixFilePart read{.fingerprint = {head.fingerprint},
                      .first_block = static_cast<int32_t>(head.first_block),
                      .blocks = static_cast<int32_t>(head.blocks),
                      .block_tokens = static_cast<int32_t>(head.block_tokens),
                      .root_level = static_cast<uint8_t>(head.root_level),
                      .salt = content.substr(sizeof(head), head.salt_bytes),
                      .tokens = {},
                      .records = {}};
  read.tokens.resize(tokens);
  std::string_view rest = content.substr(sizeof(head) + head.salt_bytes);
  std::memcpy(read.tokens.data(), rest.data(), tokens * sizeof(int32_t));
  rest.remove_prefix(tokens * sizeof(int32_t));
  read.records = std::as_bytes(std::span(rest));
  file.remove_prefix(part.size());
  return read;
}

}  // namespace tessera
