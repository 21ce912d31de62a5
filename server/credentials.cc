#include "server/credentials.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

// How often gRPC looks at the mirror.
constexpr unsigned kRefreshSeconds = 2;

struct FreeWithOpenSsl {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using Certificate = std::unique_ptr<X509, FreeWithOpenSsl>;
using Key = std::unique_ptr<EVP_PKEY, FreeWithOpenSsl>;
using File = std::unique_ptr<FILE, CloseFile>;

absl::StatusOr<File> OpenPem(const std::string& flag, const std::string& path) {
  File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return FieldError(flag, absl::StrCat("cannot read ", path));
  return file;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& flag, const std::string& path) {
  LOWERD_ASSIGN_OR_RETURN(const File file, OpenPem(flag, path));
  Certificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) {
    return FieldError(flag, absl::StrCat(path, " holds no PEM certificate"));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return FieldError(flag, absl::StrCat("the certificate in ", path, " has expired"));
  }
  return certificate;
}

}  // namespace

absl::Status CheckCertificates(const Config& config) {
  if (!config.tls_client_ca.empty()) {
    LOWERD_RETURN_IF_ERROR(ReadCertificate("--tls-client-ca", config.tls_client_ca).status());
  }
  if (config.tls_cert.empty()) return absl::OkStatus();
  LOWERD_ASSIGN_OR_RETURN(const Certificate certificate,
                          ReadCertificate("--tls-cert", config.tls_cert));
  LOWERD_ASSIGN_OR_RETURN(const File file, OpenPem("--tls-key", config.tls_key));
  // Nobody is there to type a passphrase.
  const Key key(PEM_read_PrivateKey(
      file.get(), nullptr, +[](char*, int, int, void*) { return 0; }, nullptr));
  const bool fits = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return FieldError("--tls-key",
                      absl::StrCat(config.tls_key, " holds no PEM private key without passphrase"));
  }
  if (!fits) {
    return FieldError("--tls-key",
                      absl::StrCat("the key in ", config.tls_key,
                                   " is not that of the certificate in ", config.tls_cert));
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const Config& config, const CertificateMirror* mirror, std::shared_ptr<Authorizer> authorizer) {
  if (mirror == nullptr) return grpc::InsecureServerCredentials();
  auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      mirror->key(), mirror->cert(), mirror->client_ca(), kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(std::move(provider));
  options.watch_identity_key_cert_pairs();
  if (!config.tls_client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(config.token_file.empty()
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::move(authorizer));
  return credentials;
}

}  // namespace lowerd::server
