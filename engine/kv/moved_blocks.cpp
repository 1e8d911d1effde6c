// Prefixes that leave and enter a prefix cache as bytes (engine/kv/prefix_transfer.h).

#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/kv/prefix_transfer.h"
#include "engine/kv/shared_prefixes.h"

namespace tessera {
namespace {

// Head of a record.
struct MovedHead {
  uint8_t level = 0;
  uint8_t grade = 0;
  uint16_t zero = 0;
  uint32_t bytes = 0;
};
static_assert(sizeof(MovedHead) == PrefixTransfer::kHeadBytes);

absl::Status damaged_file() {
  return absl::DataLossError("the file's blocks are damaged");
}

// Reads the record at `at`, and moves `at` behind it.
absl::Status next_record(std::span<std::byte> bytes, size_t& at, BlockBuffer& block) {
  MovedHead head;
  if (bytes.size() - at < sizeof(head)) {
    return damaged_file();
  }
  std::memcpy(&head, bytes.data() + at, sizeof(head));
  at += sizeof(head);
  if (head.zero != 0 || head.bytes > bytes.size() - at) {
    return damaged_file();
  }
  block.id = {.path = {}, .grade = head.grade, .level = head.level};
  block.room = bytes.subspan(at, head.bytes);
  block.pages = head.bytes;
  at += head.bytes;
  return absl::OkStatus();
}

}  // namespace

void SharedPrefixes::write_out(const KvPrompt& prompt, const KvMatch& path,
                               PrefixTransfer& transfer) {
  const PrefixBlocks& blocks = cache_->blocks();
  const StoredBlocks& stored = blocks.stored();
  transfer.status = stored.check_moves();
  if (!transfer.status.ok()) {
    return;
  }
  const KvMatch whole = whole_blocks_of(path);
  std::vector<PrefixTree::Node>& nodes = transfer.path;
  nodes.clear();
  for (PrefixTree::Node node = whole.blocks() > 0 ? whole.node : PrefixTree::kNone; node >= 0;
       node = blocks.tree().parent(node)) {
    nodes.push_back(node);
  }
  transfer.fingerprint = stored.fingerprint();
  transfer.root_level = blocks.levels().own_of(prompt);
  size_t at = 0;
  for (int32_t i = transfer.first_block; i < whole.blocks() && !transfer.more; ++i) {
    const PrefixTree::Node node = nodes[nodes.size() - 1 - static_cast<size_t>(i)];
    const size_t size = stored.bytes_of(node);
    transfer.more = transfer.bytes.size() - at < sizeof(MovedHead) + size;
    if (!transfer.more) {
      const MovedHead head{.level = blocks.tree().level(node),
                           .grade = blocks.tree().grade(node),
                           .bytes = static_cast<uint32_t>(size)};
      std::memcpy(transfer.bytes.data() + at, &head, sizeof(head));
      at += sizeof(head);
      stored.write(node, std::span(transfer.bytes).subspan(at, size));
      at += size;
      ++transfer.blocks;
    }
  }
  transfer.bytes.resize(at);
}

absl::Status SharedPrefixes::check_origin(const KvPrompt& prompt,
                                          const PrefixTransfer& transfer) const {
  const PrefixBlocks& blocks = cache_->blocks();
  const absl::Status stores = blocks.stored().check_moves();
  if (!stores.ok()) {
    return stores;
  }
  if (transfer.fingerprint != blocks.stored().fingerprint()) {
    return absl::FailedPreconditionError(
        "the file was made by a server with another checkpoint, version, CPU or KV setting: its "
        "blocks have other bits");
  }
  return transfer.root_level == blocks.levels().own_of(prompt)
             ? absl::OkStatus()
             : absl::FailedPreconditionError("the file's blocks have another KV format");
}

void SharedPrefixes::read_in(const KvPrompt& prompt, const KvMatch& path,
                             PrefixTransfer& transfer) {
  transfer.status = check_origin(prompt, transfer);
  const KvMatch known = whole_blocks_of(path);
  if (transfer.status.ok() && known.blocks() < transfer.first_block) {
    transfer.status = absl::FailedPreconditionError(absl::StrCat(
        "the file begins behind ", transfer.first_block, " blocks, of which the cache has ",
        known.blocks(), ": import the parts before it first"));
  }
  Restored blocks(*this, known);
  transfer.blocks = known.blocks();
  size_t at = 0;
  for (int32_t i = transfer.first_block; transfer.status.ok() && at < transfer.bytes.size(); ++i) {
    transfer.status = next_record(transfer.bytes, at, transfer.block);
    if (!transfer.status.ok() || i < known.blocks()) {
      continue;
    }
    const auto length = static_cast<size_t>(block_tokens());
    const size_t first = static_cast<size_t>(i) * length;
    if (first + length > prompt.tokens.size()) {
      transfer.status = damaged_file();
      continue;
    }
    const std::span<const int32_t> tokens = prompt.tokens.subspan(first, length);
    transfer.block.tokens.assign(tokens.begin(), tokens.end());
    if (cache_->blocks().stored().pages_of(transfer.block) < 0) {
      transfer.status = damaged_file();
    } else if (!blocks.add(prompt, transfer.block)) {
      transfer.status = absl::ResourceExhaustedError(
          absl::StrCat("the cache has no room for more than ", i, " blocks of the prefix"));
    } else {
      ++transfer.blocks;
    }
  }
}

}  // namespace tessera
