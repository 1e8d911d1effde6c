#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace tessera {

// A certificate and its key for gRPC, which are read again each second. gRPC's own reader waits
// where a FIFO is in place of a file, and the end of the server with it. It also takes a pair of
// which one file is written and the other is not. So gRPC watches a copy in memory, which changes
// only to a pair that fits.
class WatchedCertificate {
 public:
  // Errors: as read_configuration_file(). Unavailable if the two do not fit together.
  static absl::StatusOr<std::unique_ptr<WatchedCertificate>> watch(const std::string& certificate,
                                                                   const std::string& key);
  ~WatchedCertificate();
  WatchedCertificate(const WatchedCertificate&) = delete;
  WatchedCertificate& operator=(const WatchedCertificate&) = delete;

  // Returns: the path of the copy, which has key and certificate.
  std::string path() const;

 private:
  WatchedCertificate(std::string certificate, std::string key, int copy)
      : certificate_(std::move(certificate)), key_(std::move(key)), copy_(copy) {}

  absl::StatusOr<std::string> read_pair() const;
  bool write_copy(const std::string& pair);
  void run();

  const std::string certificate_;
  const std::string key_;
  const int copy_;    // a file without a name
  std::string pair_;  // its contents
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace tessera
