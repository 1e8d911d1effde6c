#include "server/grpc/watched_certificate.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "server/base/configuration_file.h"

namespace tessera {
namespace {

constexpr std::chrono::seconds kInterval{1};

absl::StatusOr<std::string> read_pem(std::string_view what, const std::string& path) {
  absl::StatusOr<std::string> text = read_configuration_file(path);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        fmt::format("{} {}", what, std::string(text.status().message())));
  }
  return text;
}

// OpenSSL would ask at the terminal for the password of a key, and wait.
int no_password(char*, int, int, void*) {
  return -1;
}

bool fit_together(const std::string& certificate, const std::string& key) {
  const auto reader = [](const std::string& pem) {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  };
  const std::unique_ptr<X509, decltype(&X509_free)> first(
      PEM_read_bio_X509_AUX(reader(certificate).get(), nullptr, no_password, nullptr), X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> own(
      PEM_read_bio_PrivateKey(reader(key).get(), nullptr, no_password, nullptr), EVP_PKEY_free);
  const bool fit =
      first != nullptr && own != nullptr && X509_check_private_key(first.get(), own.get()) == 1;
  ERR_clear_error();
  return fit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WatchedCertificate>> WatchedCertificate::watch(
    const std::string& certificate, const std::string& key) {
  const int copy = memfd_create("tessera-certificate", MFD_CLOEXEC);
  if (copy < 0) {
    return absl::UnavailableError(
        fmt::format("no memory for a copy of the TLS certificate: {}", std::strerror(errno)));
  }
  std::unique_ptr<WatchedCertificate> watched(new WatchedCertificate(certificate, key, copy));
  TESSERA_ASSIGN_OR_RETURN(const std::string pair, watched->read_pair());
  if (!watched->write_copy(pair)) {
    return absl::UnavailableError(
        fmt::format("no memory for a copy of the TLS certificate: {}", std::strerror(errno)));
  }
  watched->thread_ = std::thread([self = watched.get()] { self->run(); });
  return watched;
}

WatchedCertificate::~WatchedCertificate() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  ::close(copy_);
}

std::string WatchedCertificate::path() const {
  return fmt::format("/proc/self/fd/{}", copy_);
}

absl::StatusOr<std::string> WatchedCertificate::read_pair() const {
  TESSERA_ASSIGN_OR_RETURN(const std::string certificate,
                           read_pem("TLS certificate", certificate_));
  TESSERA_ASSIGN_OR_RETURN(const std::string key, read_pem("TLS key", key_));
  if (!fit_together(certificate, key)) {
    return absl::UnavailableError(
        fmt::format("TLS certificate '{}' and key '{}' do not fit together", certificate_, key_));
  }
  return key + "\n" + certificate;
}

// gRPC may read between the two calls. It finds the new pair first, and looks again in a second.
bool WatchedCertificate::write_copy(const std::string& pair) {
  if (!std::cmp_equal(::pwrite(copy_, pair.data(), pair.size(), 0), pair.size()) ||
      ::ftruncate(copy_, static_cast<off_t>(pair.size())) != 0) {
    return false;
  }
  pair_ = pair;
  return true;
}

void WatchedCertificate::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    const absl::StatusOr<std::string> pair = read_pair();
    if (pair.ok() && *pair != pair_) {
      write_copy(*pair);
    }
  }
}

}  // namespace tessera
