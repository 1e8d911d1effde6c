#include "engine/tier/disk_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// A segment has this share of the limit, so that one that is removed takes little with it, and all
// segments need few files.
constexpr int64_t kSegments = 64;
constexpr int64_t kLeastSegmentBytes = int64_t{64} << 10;
// A segment that is read is marked as used, for the order after a restart, at most so often.
constexpr std::chrono::seconds kTouchInterval{10};

}  // namespace

absl::StatusOr<std::unique_ptr<DiskStore>> DiskStore::open(const Options& options) {
  if (options.limit < kLeastLimit) {
    return absl::InvalidArgumentError(absl::StrCat("kv-disk-size is ", options.limit,
                                                   " bytes, it must be at least ", kLeastLimit));
  }
  std::error_code error;
  if (std::filesystem::create_directories(options.directory, error)) {
    std::filesystem::permissions(options.directory, std::filesystem::perms::owner_all, error);
  }
  static const DiskCalls kOfSystem;
  const DiskCalls& calls = options.calls != nullptr ? *options.calls : kOfSystem;
  TESSERA_ASSIGN_OR_RETURN(OwnedFile lock, OwnedFile::open(options.directory / "lock", calls));
  if (!lock.lock()) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv-disk ", options.directory.string(),
                     " is used by another process: each server needs a directory of its own"));
  }
  auto store = std::unique_ptr<DiskStore>(new DiskStore(options, std::move(lock)));
  store->load();
  return store;
}

DiskStore::DiskStore(const Options& options, OwnedFile lock)
    : directory_(options.directory),
      limit_(options.limit),
      segment_bytes_(std::max(options.limit / kSegments, kLeastSegmentBytes)),
      calls_(options.calls != nullptr ? *options.calls : DiskCalls{}),
      lock_(std::move(lock)) {}

// A process that was killed while it removed a segment has left one of its two files. Without
// records a list has nothing to tell, and the segment is removed below.
std::vector<uint64_t> DiskStore::numbers_by_use() {
  std::map<uint64_t, std::filesystem::file_time_type> used;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory_, error)) {
    if (const std::optional<uint64_t> number = Segment::number_of(file.path())) {
      const auto time = std::filesystem::last_write_time(file.path(), error);
      auto& latest = used.emplace(*number, time).first->second;
      latest = std::max(latest, time);
    }
  }
  std::vector<uint64_t> numbers;
  for (const auto& [number, time] : used) {
    numbers.push_back(number);
  }
  next_number_ = numbers.empty() ? 0 : numbers.back() + 1;
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](uint64_t a, uint64_t b) { return used.at(a) < used.at(b); });
  return numbers;
}

// The order of use is that of the files' times.
void DiskStore::load() {
  for (const uint64_t number : numbers_by_use()) {
    std::vector<Segment::Listed> listed;
    auto segment = Segment::open(directory_, number, calls_, listed);
    if (!segment.ok() || listed.empty()) {
      counting_.damaged_blocks += segment.ok() ? 0 : 1;
      Segment::remove(directory_, number);
      continue;
    }
    const int64_t size = (*segment)->bytes();
    auto used = std::make_shared<Used>(Used{*std::move(segment), {}, size, ++time_, {}});
    for (const Segment::Listed& block : listed) {
      index_[block.id] = {used, block.place, 0};
      used->blocks.push_back(block.id);
    }
    segments_.push_back(std::move(used));
  }
  while (room() < 0 && drop_oldest()) {
  }
}

int64_t DiskStore::bytes() const {
  int64_t sum = 0;
  for (const auto& used : segments_) {
    sum += used->bytes;
  }
  return sum;
}

int64_t DiskStore::room() const {
  const std::lock_guard lock(mutex_);
  return limit_ - bytes();
}

bool DiskStore::drop_oldest() {
  std::shared_ptr<Used> oldest;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& used : segments_) {
      oldest = oldest == nullptr || used->used < oldest->used ? used : oldest;
    }
  }
  const int64_t dropped = oldest == nullptr ? 0 : drop(oldest);
  const std::lock_guard lock(mutex_);
  counting_.dropped_blocks += dropped;
  return oldest != nullptr;
}

// The engine's thread looks into the index too, so the lock is held for a few blocks at a time.
int64_t DiskStore::drop(const std::shared_ptr<Used>& segment) {
  constexpr size_t kBatch = 256;
  int64_t dropped = 0;
  for (size_t first = 0; first < segment->blocks.size(); first += kBatch) {
    const std::lock_guard lock(mutex_);
    const size_t end = std::min(first + kBatch, segment->blocks.size());
    for (size_t i = first; i < end; ++i) {
      const auto place = index_.find(segment->blocks[i]);
      if (place != index_.end() && place->second.in == segment) {
        tell_dropped(place->second.name);
        index_.erase(place);
        ++dropped;
      }
    }
  }
  Segment::remove(directory_, segment->segment->number());
  const std::lock_guard lock(mutex_);
  std::erase(segments_, segment);
  return dropped;
}

absl::Status DiskStore::begin_segment() {
  if (std::exchange(unsynced_, false) && !segments_.empty()) {
    TESSERA_RETURN_IF_ERROR(segments_.back()->segment->sync());
  }
  std::vector<Segment::Listed> listed;
  TESSERA_ASSIGN_OR_RETURN(auto segment, Segment::open(directory_, next_number_, calls_, listed));
  ++next_number_;
  const std::lock_guard lock(mutex_);
  const int64_t size = segment->bytes();
  segments_.push_back(std::make_shared<Used>(Used{std::move(segment), {}, size, ++time_, {}}));
  return absl::OkStatus();
}

absl::Status DiskStore::append(const StoredBlock& block) {
  if (segments_.empty() ||
      segments_.back()->segment->bytes() + Segment::bytes_of(block) > segment_bytes_) {
    TESSERA_RETURN_IF_ERROR(begin_segment());
  }
  const std::shared_ptr<Used> last = segments_.back();
  TESSERA_ASSIGN_OR_RETURN(const SegmentPlace place, last->segment->append(block));
  unsynced_ = true;
  const std::lock_guard lock(mutex_);
  last->blocks.push_back(block.id);
  last->bytes = last->segment->bytes();
  last->used = ++time_;
  index_[block.id] = {last, place, tell_stored(block.name)};
  return absl::OkStatus();
}

// A full disk may be full of other files. Then the store becomes smaller than its limit, but one
// block does not cost it the only segment.
absl::Status DiskStore::put(const StoredBlock& block) {
  if (find(block.id.path, block.id.grade).has_value()) {
    return absl::OkStatus();
  }
  const int64_t needed = Segment::bytes_of(block) + Segment::kHeadBytes;
  if (needed > limit_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of ", needed, " bytes is larger than kv-disk-size, ", limit_));
  }
  const std::lock_guard writing(writing_);
  while (room() < needed && drop_oldest()) {
  }
  absl::Status status = append(block);
  if (absl::IsResourceExhausted(status) && segments_.size() > 1 && drop_oldest()) {
    status = append(block);
  }
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    ++counting_.write_errors;
  }
  return status;
}

std::optional<BlockId> DiskStore::find(const BlockKey& path, uint8_t accept) const {
  const std::lock_guard lock(mutex_);
  const auto entry = index_.lower_bound(BlockId{path, 0, 0});
  const bool found =
      entry != index_.end() && entry->first.path == path && entry->first.grade <= accept;
  return found ? std::optional(entry->first) : std::nullopt;
}

absl::StatusOr<size_t> DiskStore::read(const BlockId& id, std::span<const int32_t> tokens,
                                       std::span<std::byte> pages) {
  Place at;
  bool touches = false;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = index_.find(id);
    if (entry == index_.end()) {
      return absl::NotFoundError("the block is not on the disk");
    }
    at = entry->second;
    at.in->used = ++time_;
    const Clock::time_point now = Clock::now();
    touches = now - at.in->touched > kTouchInterval;
    at.in->touched = touches ? now : at.in->touched;
  }
  if (touches) {
    at.in->segment->touch();
  }
  absl::StatusOr<size_t> count = at.in->segment->read({id, at.place}, tokens, pages);
  if (!count.ok()) {
    erase(id);
    const std::lock_guard lock(mutex_);
    ++(absl::IsUnavailable(count.status()) ? counting_.read_errors : counting_.damaged_blocks);
  }
  return count;
}

void DiskStore::erase(const BlockId& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = index_.find(id);
  if (entry != index_.end()) {
    tell_dropped(entry->second.name);
    index_.erase(entry);
  }
}

void DiskStore::clear() {
  const std::lock_guard writing(writing_);
  unsynced_ = false;
  while (!segments_.empty()) {
    drop(std::shared_ptr(segments_.back()));
  }
}

void DiskStore::sync() {
  const std::lock_guard writing(writing_);
  if (!std::exchange(unsynced_, false) || segments_.empty()) {
    return;
  }
  if (!segments_.back()->segment->sync().ok()) {
    const std::lock_guard lock(mutex_);
    ++counting_.write_errors;
  }
}

BlockStoreStats DiskStore::stats() const {
  const std::lock_guard lock(mutex_);
  BlockStoreStats stats = counting_;
  stats.limit = limit_;
  stats.bytes = bytes();
  stats.blocks = std::ssize(index_);
  return stats;
}

}  // namespace tessera
