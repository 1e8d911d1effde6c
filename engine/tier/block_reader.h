#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine/tier/block_buffers.h"
#include "engine/tier/block_store.h"
#include "engine/tier/read_guard.h"
#include "engine/tier/restore_rates.h"

namespace tessera {

// Reads the blocks of paths from the stores, on a thread of its own. The engine's thread starts
// jobs and takes the blocks as they come. It never waits for a disk. While a disk does not answer
// (ReadGuard), no job is to be started, and the thread tries the last block again now and then.
class BlockReader {
 public:
  static constexpr size_t kJobs = 4;
  // The blocks that a path goes on with. Filled by the caller between free_job() and start().
  struct Job {
    std::vector<BlockKey> paths;  // a key for each block
    std::vector<int32_t> tokens;  // of all of them
    uint8_t accept = 0;           // coarsest grade
    uint64_t owner = 0;           // the caller's

   private:
    friend class BlockReader;
    enum class State : uint8_t { free, waits, reads, done };
    State state_ = State::free;
    bool released_ = false;            // the reader frees it
    std::vector<BlockBuffer*> ready_;  // read and not yet taken, in order
    uint64_t turn_ = 0;                // jobs are served in the order of start()
  };
  struct Stats {
    std::array<int64_t, 2> blocks = {};  // read from each store
    int64_t bytes = 0;
    double seconds = 0;
    std::array<RecentMedian, 2> block_seconds = {};  // from each store
    int64_t suspensions = 0;
  };

  // stores: outlive this; the fastest one first. A block that is read from the second one is put
  // into the first one. path_blocks: most blocks of a job. bytes: of the blocks that were read and
  // not yet taken.
  struct Shape {
    int64_t bytes = 0;
    int64_t block_bytes = 0;
    int32_t block_tokens = 0;
    int32_t path_blocks = 0;
    std::chrono::milliseconds trial_pause{1000};  // see ReadGuard
  };
  BlockReader(std::span<BlockStore* const> stores, const Shape& shape);
  ~BlockReader();  // gives up all jobs

  // ---- one thread, the engine's
  Job* free_job();  // Returns: null if all are in use.
  void start(Job& job);
  // Returns: the next block of the job; null if it has not been read yet. It stays until pop().
  const BlockBuffer* front(const Job& job) const;
  void pop(Job& job);
  bool ended(const Job& job) const;  // nothing more comes, and all was taken
  void release(Job& job);            // ends the job, which may still be read
  // Waits until a block has been read or a job has ended, at most so long.
  void wait(std::chrono::milliseconds most);
  void note_timeout();  // a job's blocks came too late
  bool suspended() const { return suspended_; }

  Stats stats() const;

 private:
  void run();
  Job* next_job();
  void read(Job& job, std::unique_lock<std::mutex>& lock);
  // Returns: the store that had the block; nothing if none had it.
  std::optional<size_t> read_block(const Job& job, size_t index, BlockBuffer& buffer);
  void note_read(std::optional<size_t> store, std::chrono::steady_clock::duration took);
  void try_again(std::unique_lock<std::mutex>& lock);
  void free(Job& job);

  const std::vector<BlockStore*> stores_;
  const size_t block_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // for the reader: a job, a free buffer, or the end
  std::condition_variable arrived_;  // for the engine
  BlockBuffers buffers_;
  std::array<Job, kJobs> jobs_;
  uint64_t turn_ = 0;
  uint64_t events_ = 0;
  bool stops_ = false;
  Stats counting_;
  ReadGuard guard_;
  std::atomic<bool> suspended_ = false;  // guard_.suspended()
  // The block that was asked for last. Reader's thread.
  BlockKey last_path_;
  uint8_t last_accept_ = 0;
  std::vector<int32_t> last_tokens_;
  std::thread thread_;
};

}  // namespace tessera
