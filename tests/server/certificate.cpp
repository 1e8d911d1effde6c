#include "tests/server/certificate.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>

namespace tessera {
namespace {

template <auto release>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    release(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using File = std::unique_ptr<FILE, Freed<fclose>>;

}  // namespace

CertificatePair::CertificatePair() {
  static std::atomic<int> count = 0;
  folder_ = std::filesystem::path(testing::TempDir()) /
            ("tessera_tls_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
  std::filesystem::create_directories(folder_);
  const Key secret(EVP_EC_gen("P-256"));
  const Certificate made(X509_new());
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_NAME* const name = X509_get_subject_name(made.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_set_pubkey(made.get(), secret.get());
  const Extension names(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost"));
  X509_add_ext(made.get(), names.get(), -1);
  X509_sign(made.get(), secret.get(), EVP_sha256());
  PEM_write_PrivateKey(File(std::fopen(key().c_str(), "w")).get(), secret.get(), nullptr, nullptr,
                       0, nullptr, nullptr);
  PEM_write_X509(File(std::fopen(certificate().c_str(), "w")).get(), made.get());
}

CertificatePair::~CertificatePair() {
  std::filesystem::remove_all(folder_);
}

void CertificatePair::copy_to(const CertificatePair& other) const {
  constexpr auto kOver = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(key(), other.key(), kOver);
  std::filesystem::copy_file(certificate(), other.certificate(), kOver);
}

}  // namespace tessera
