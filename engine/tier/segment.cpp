#include "engine/tier/segment.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr uint64_t kSegmentMagic = 0x32564b4152455354;  // "TSERAKV2"
constexpr uint32_t kRecordMagic = 0x4b434f4c;           // "LOCK"
constexpr std::string_view kRecordsEnd = ".kv";
constexpr std::string_view kListEnd = ".list";
constexpr std::string_view kBegin = "segment-";

struct SegmentHead {
  uint64_t magic = kSegmentMagic;
  uint64_t number = 0;
};
static_assert(sizeof(SegmentHead) == Segment::kHeadBytes);

// Heads are hashed and compared as bytes, so they have no gaps.
struct RecordHead {
  uint32_t magic = kRecordMagic;
  uint32_t tokens = 0;
  uint64_t pages = 0;  // bytes
  BlockKey path;
  uint8_t grade = 0;
  uint8_t level = 0;
  uint8_t zero[2] = {};
  uint32_t head_checksum = 0;  // of the fields before it
  uint64_t checksum = 0;       // of the record, with 0 in this place
};
static_assert(sizeof(RecordHead) == 64);

struct ListEntry {
  BlockKey path;
  uint8_t grade = 0;
  uint8_t level = 0;
  uint8_t zero[6] = {};
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t checksum = 0;  // of the fields before it
};
static_assert(sizeof(ListEntry) == 64);

template <class T>
std::span<std::byte> bytes_in(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

uint64_t checksum_of(const ListEntry& entry) {
  return XXH3_64bits(&entry, offsetof(ListEntry, checksum));
}

// first: head and tokens, with a checksum of 0.
uint64_t checksum_of(std::span<const std::byte> first, std::span<const std::byte> pages) {
  return XXH3_64bits_withSeed(pages.data(), pages.size(), XXH3_64bits(first.data(), first.size()));
}

uint32_t head_checksum_of(const RecordHead& head) {
  return static_cast<uint32_t>(XXH3_64bits(&head, offsetof(RecordHead, head_checksum)));
}

int64_t token_bytes_of(std::span<const int32_t> tokens) {
  return static_cast<int64_t>(tokens.size_bytes());
}

std::filesystem::path file_of(const std::filesystem::path& directory, uint64_t number,
                              std::string_view end) {
  return directory / absl::StrCat(std::string(kBegin), number, std::string(end));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Segment>> Segment::open(const std::filesystem::path& directory,
                                                       uint64_t number, const DiskCalls& calls,
                                                       std::vector<Listed>& listed) {
  TESSERA_ASSIGN_OR_RETURN(OwnedFile records,
                           OwnedFile::open(file_of(directory, number, kRecordsEnd), calls));
  TESSERA_ASSIGN_OR_RETURN(OwnedFile list,
                           OwnedFile::open(file_of(directory, number, kListEnd), calls));
  auto segment = std::unique_ptr<Segment>(new Segment(number, std::move(records), std::move(list)));
  TESSERA_RETURN_IF_ERROR(segment->check_head());
  const bool list_is_whole = segment->read_list(listed);
  segment->find_unlisted(list_is_whole, listed);
  return segment;
}

std::optional<uint64_t> Segment::number_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  const std::string_view kind = name.ends_with(kListEnd) ? kListEnd : kRecordsEnd;
  if (!name.starts_with(kBegin) || !name.ends_with(kind)) {
    return std::nullopt;
  }
  uint64_t number = 0;
  const char* const first = name.data() + kBegin.size();
  const char* const last = name.data() + name.size() - kind.size();
  const auto [end, error] = std::from_chars(first, last, number);
  return error == std::errc() && end == last ? std::optional(number) : std::nullopt;
}

void Segment::remove(const std::filesystem::path& directory, uint64_t number) {
  std::error_code ignored;
  std::filesystem::remove(file_of(directory, number, kRecordsEnd), ignored);
  std::filesystem::remove(file_of(directory, number, kListEnd), ignored);
}

int64_t Segment::bytes_of(const StoredBlock& block) {
  return int64_t{sizeof(RecordHead)} + token_bytes_of(block.tokens) + std::ssize(block.pages) +
         int64_t{sizeof(ListEntry)};
}

absl::Status Segment::check_head() {
  SegmentHead head{.number = number_};
  end_ = records_.size();
  if (end_ < int64_t{sizeof(head)}) {  // new, or torn before its first block
    records_.truncate(0);
    list_.truncate(0);
    end_ = sizeof(head);
    return records_.write(bytes_in(head), 0);
  }
  SegmentHead found;
  TESSERA_RETURN_IF_ERROR(records_.read(bytes_in(found), 0));
  return found.magic == head.magic && found.number == head.number
             ? absl::OkStatus()
             : absl::DataLossError("the file does not begin like a segment");
}

// An entry that names bytes behind the end would name a later block there, so it is damaged too.
bool Segment::read_list(std::vector<Listed>& listed) {
  const int64_t size = list_.size();
  std::vector<ListEntry> entries(static_cast<size_t>(size) / sizeof(ListEntry));
  const bool whole = list_.read(std::as_writable_bytes(std::span(entries)), 0).ok();
  if (!whole) {
    entries.clear();
  }
  list_end_ = std::ssize(entries) * int64_t{sizeof(ListEntry)};
  list_.truncate(list_end_);
  bool damaged = !whole;
  for (const ListEntry& entry : entries) {
    const bool sound = entry.checksum == checksum_of(entry) && entry.offset + entry.bytes <= end_;
    damaged = damaged || !sound;
    if (sound) {
      listed.push_back({{entry.path, entry.grade, entry.level}, {entry.offset, entry.bytes}});
    }
  }
  return !damaged;
}

std::optional<Segment::Listed> Segment::head_at(int64_t at) const {
  RecordHead head;
  if (at + int64_t{sizeof(head)} > end_ || !records_.read(bytes_in(head), at).ok() ||
      head.magic != kRecordMagic || head.head_checksum != head_checksum_of(head)) {
    return std::nullopt;
  }
  const int64_t rest = end_ - at - int64_t{sizeof(head)};
  const int64_t tokens = head.tokens * int64_t{sizeof(int32_t)};
  if (tokens > rest || head.pages > static_cast<uint64_t>(rest - tokens)) {
    return std::nullopt;  // torn
  }
  const auto bytes = int64_t{sizeof(head)} + tokens + static_cast<int64_t>(head.pages);
  return Listed{{head.path, head.grade, head.level}, {at, bytes}};
}

// Goes from record to record, behind the last one of a whole list. A damaged list is made anew,
// from the first record on; one whose head is damaged ends where the next listed one begins.
void Segment::find_unlisted(bool list_is_whole, std::vector<Listed>& listed) {
  std::vector<Listed> known;  // to be listed anew
  int64_t at = sizeof(SegmentHead);
  if (list_is_whole) {
    for (const Listed& block : listed) {
      at = std::max(at, block.place.offset + block.place.bytes);
    }
  } else {
    std::swap(known, listed);
    std::sort(known.begin(), known.end(),
              [](const Listed& a, const Listed& b) { return a.place.offset < b.place.offset; });
    list_.truncate(0);
    list_end_ = 0;
  }
  for (auto next = known.begin();;) {
    while (next != known.end() && next->place.offset < at) {
      ++next;
    }
    const bool is_known = next != known.end() && next->place.offset == at;
    const std::optional<Listed> found = is_known ? std::optional(*next) : head_at(at);
    if (found.has_value() && (list(*found).ok() || is_known)) {
      listed.push_back(*found);
      at += found->place.bytes;
    } else if (next != known.end()) {
      at = next->place.offset;
    } else {
      break;
    }
  }
  records_.truncate(at);
  end_ = at;
}

absl::Status Segment::list(const Listed& block) {
  ListEntry entry{.path = block.id.path,
                  .grade = block.id.grade,
                  .level = block.id.level,
                  .offset = block.place.offset,
                  .bytes = block.place.bytes};
  entry.checksum = checksum_of(entry);
  const absl::Status status = list_.write(bytes_in(entry), list_end_);
  if (status.ok()) {
    list_end_ += sizeof(entry);
  } else {
    list_.truncate(list_end_);
  }
  return status;
}

absl::StatusOr<SegmentPlace> Segment::append(const StoredBlock& block) {
  RecordHead head{.tokens = static_cast<uint32_t>(block.tokens.size()),
                  .pages = block.pages.size(),
                  .path = block.id.path,
                  .grade = block.id.grade,
                  .level = block.id.level};
  head.head_checksum = head_checksum_of(head);
  const std::span<const std::byte> tokens = std::as_bytes(block.tokens);
  scratch_.resize(sizeof(head) + tokens.size());
  std::memcpy(scratch_.data(), &head, sizeof(head));
  std::copy(tokens.begin(), tokens.end(), scratch_.begin() + sizeof(head));
  head.checksum = checksum_of(scratch_, block.pages);
  std::memcpy(scratch_.data(), &head, sizeof(head));
  const auto first = static_cast<int64_t>(scratch_.size());
  const SegmentPlace place{end_, first + std::ssize(block.pages)};
  absl::Status status = records_.write(scratch_, end_);
  if (status.ok()) {
    status = records_.write(block.pages, end_ + first);
  }
  if (status.ok()) {
    status = list({block.id, place});
  }
  if (!status.ok()) {
    records_.truncate(end_);
    return status;
  }
  end_ += place.bytes;
  return place;
}

absl::StatusOr<size_t> Segment::read(const Listed& block, std::span<const int32_t> tokens,
                                     std::span<std::byte> pages) const {
  const std::span<const std::byte> expected = std::as_bytes(tokens);
  std::vector<std::byte> first(sizeof(RecordHead) + expected.size());
  const int64_t count = block.place.bytes - std::ssize(first);
  if (count < 0) {
    return absl::DataLossError("a block of other tokens");
  }
  if (count > std::ssize(pages)) {
    return absl::OutOfRangeError("a block of more bytes than expected");
  }
  pages = pages.first(static_cast<size_t>(count));
  TESSERA_RETURN_IF_ERROR(records_.read(first, block.place.offset));
  TESSERA_RETURN_IF_ERROR(records_.read(pages, block.place.offset + std::ssize(first)));
  RecordHead head;
  std::memcpy(&head, first.data(), sizeof(head));
  const uint64_t checksum = std::exchange(head.checksum, 0);
  std::memcpy(first.data(), &head, sizeof(head));
  const bool whole = head.magic == kRecordMagic && head.pages == pages.size() &&
                     head.tokens == tokens.size() && checksum == checksum_of(first, pages);
  const bool same = BlockId{head.path, head.grade, head.level} == block.id &&
                    std::equal(expected.begin(), expected.end(), first.begin() + sizeof(head));
  return whole && same ? absl::StatusOr<size_t>(pages.size())
                       : absl::DataLossError("a damaged block, or one of other tokens");
}

absl::Status Segment::sync() {
  TESSERA_RETURN_IF_ERROR(records_.sync());
  return list_.sync();
}

}  // namespace tessera
