#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// A key and a certificate for "localhost" that it has signed itself: PEM files, which go with this.
class CertificatePair {
 public:
  CertificatePair();
  ~CertificatePair();
  CertificatePair(const CertificatePair&) = delete;
  CertificatePair& operator=(const CertificatePair&) = delete;

  std::string certificate() const { return folder_ / "certificate.pem"; }
  std::string key() const { return folder_ / "key.pem"; }

 private:
  std::filesystem::path folder_;
};

}  // namespace tessera
