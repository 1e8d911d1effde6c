#pragma once

#include <filesystem>
#include <string>

namespace tessera {

// A key and a self-signed certificate for "localhost", as PEM files. Removed with this object.
class CertificatePair {
 public:
  CertificatePair();
  ~CertificatePair();
  CertificatePair(const CertificatePair&) = delete;
  CertificatePair& operator=(const CertificatePair&) = delete;

  void copy_to(const CertificatePair& other) const;  // overwrites its files

  std::string certificate() const { return folder_ / "certificate.pem"; }
  std::string key() const { return folder_ / "key.pem"; }

 private:
  std::filesystem::path folder_;
};

}  // namespace tessera
