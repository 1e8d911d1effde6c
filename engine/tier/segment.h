#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tier/block_store.h"
#include "engine/tier/owned_file.h"

namespace tessera {

// Where a block is in a segment.
struct SegmentPlace {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A file of blocks, appended and never rewritten, with a second file that lists them. So a start
// reads the list, a ten-thousandth of the bytes, and not the blocks.
//
//   segment-N.kv     [ head | record ... ]    record: head, tokens, pages
//   segment-N.list   [ entry ... ]            entry: block, place, checksum
//
// Each record and each entry has its own checksum (XXH3). A record is checked when it is read. An
// embedded database would list them too. But LMDB's pages have no checksums, and some flipped bits
// of its file end the process (SIGBUS); RocksDB would compact what is only appended here.
//
// Records that no entry names are found again by open(), which reads their heads alone: a process
// that is killed between both writes loses nothing, and nor does one with a damaged list. A torn
// record at the end is cut off.
//
// Not thread-safe, except read().
class Segment {
 public:
  struct Listed {
    BlockId id;
    SegmentPlace place;
  };

  // Opens the segment of that number in a directory, and creates it if there is none. `listed`
  // receives its blocks.
  // Errors: those of OwnedFile::open; DataLoss (not a segment).
  static absl::StatusOr<std::unique_ptr<Segment>> open(const std::filesystem::path& directory,
                                                       uint64_t number, const DiskCalls& calls,
                                                       std::vector<Listed>& listed);
  // Returns: the number of the segment of a file with that name; nothing for other files. Each of
  // its two files may be missing.
  static std::optional<uint64_t> number_of(const std::filesystem::path& file);
  static void remove(const std::filesystem::path& directory, uint64_t number);

  static constexpr int64_t kHeadBytes = 16;  // of a segment without blocks
  // Bytes that a block takes in both files.
  static int64_t bytes_of(const StoredBlock& block);

  // Errors: those of OwnedFile::write; the segment is as before.
  absl::StatusOr<SegmentPlace> append(const StoredBlock& block);
  // Copies the pages of a block.
  // Errors: DataLoss (another checksum, other tokens, another block); OutOfRange; Unavailable.
  absl::StatusOr<size_t> read(const Listed& block, std::span<const int32_t> tokens,
                              std::span<std::byte> pages) const;
  absl::Status sync();
  void touch() { records_.touch(); }

  uint64_t number() const { return number_; }
  int64_t bytes() const { return end_ + list_end_; }  // of both files

 private:
  Segment(uint64_t number, OwnedFile records, OwnedFile list)
      : number_(number), records_(std::move(records)), list_(std::move(list)) {}

  absl::Status check_head();
  bool read_list(std::vector<Listed>& listed);  // Returns: false if it is damaged.
  // Returns: the record that begins there, if its head is whole.
  std::optional<Listed> head_at(int64_t at) const;
  void find_unlisted(bool list_is_whole, std::vector<Listed>& listed);
  absl::Status list(const Listed& block);

  const uint64_t number_;
  OwnedFile records_;
  OwnedFile list_;
  int64_t end_ = 0;
  int64_t list_end_ = 0;
  std::vector<std::byte> scratch_;
};

}  // namespace tessera
