#include "server/http_server.h"

#include <cstdlib>
#include <filesystem>
#include <httplib.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "test/support/temp_dir.h"

namespace lowerd::server {
namespace {

int PortOf(const HttpServer& server) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(server.address().substr(server.address().rfind(':') + 1), &port));
  return port;
}

HttpServer::Options Echo() {
  HttpServer::Options options;
  options.listen = "127.0.0.1:0";
  options.handler = [](const HttpRequest& request) {
    HttpResponse out;
    if (request.path == "/missing") out.status = 404;
    out.body = request.path;
    for (const auto& [name, value] : request.query)
      absl::StrAppend(&out.body, "|", name, "=", value);
    return out;
  };
  return options;
}

TEST(HttpServerTest, HandlerGetsDecodedPathAndQueryAndItsAnswerIsSent) {
  const auto server = HttpServer::Start(Echo());
  ASSERT_TRUE(server.ok()) << server.status();
  httplib::Client client("127.0.0.1", PortOf(**server));
  const auto found = client.Get("/names%2fx?q=a%20b");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->status, 200);
  EXPECT_EQ(found->body, "/names/x|q=a b");
  EXPECT_EQ(client.Get("/missing")->status, 404);
  EXPECT_EQ(client.Head("/")->status, 200);
  EXPECT_EQ(client.Post("/", "x", "text/plain")->status, 404);
}

TEST(HttpServerTest, BrowsersAreToldToLoadNothingFromElsewhere) {
  const auto server = HttpServer::Start(Echo());
  ASSERT_TRUE(server.ok()) << server.status();
  const auto found = httplib::Client("127.0.0.1", PortOf(**server)).Get("/");
  ASSERT_TRUE(found);
  const std::string policy = found->get_header_value("Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(found->get_header_value("X-Content-Type-Options"), "nosniff");
}

TEST(HttpServerTest, PortThatIsTakenIsRefused) {
  const auto first = HttpServer::Start(Echo());
  ASSERT_TRUE(first.ok()) << first.status();
  HttpServer::Options options = Echo();
  options.listen = (*first)->address();
  EXPECT_TRUE(HasReason(HttpServer::Start(std::move(options)).status(), Reason::kInvalidRequest));
}

class HttpsServerTest : public testing::Test {
 protected:
  // A CA, and a certificate of it with key, as {name}.pem and {name}.key.
  void MakeCa(const std::string& name) {
    Run(
        absl::StrCat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                     "-subj /CN=",
                     name, " -keyout ", Path(name), ".key -out ", Path(name), ".pem"));
  }
  void MakeCertificate(const std::string& name, const std::string& ca) {
    Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=",
                     name, " -keyout ", Path(name), ".key -out ", Path(name), ".csr"));
    Run(absl::StrCat("openssl x509 -req -days 2 -CAcreateserial -in ", Path(name), ".csr -CA ",
                     Path(ca), ".pem -CAkey ", Path(ca), ".key -out ", Path(name), ".pem"));
  }
  static void Run(const std::string& command) {
    ASSERT_EQ(std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()), 0) << command;
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }

  HttpServer::Options Tls() {
    HttpServer::Options options = Echo();
    options.tls_cert = Path("server.pem");
    options.tls_key = Path("server.key");
    return options;
  }

  // The subject's common name that a new connection sees; empty if there is no connection.
  static std::string ServedName(int port) {
    httplib::SSLClient client("127.0.0.1", port);
    client.enable_server_certificate_verification(false);
    std::string name;
    const auto answer = client.Get("/");
    if (!answer) return "";
    // httplib does not show the certificate, openssl does.
    const std::string command =
        absl::StrCat("openssl s_client -connect 127.0.0.1:", port, " </dev/null 2>/dev/null");
    FILE* output = ::popen(command.c_str(), "r");
    char line[512];
    while (std::fgets(line, sizeof line, output) != nullptr) {
      const std::string text = line;
      // "CN = name", or "CN=name" from openssl 3.2 on.
      if (text.rfind("subject=", 0) == 0) name = text.substr(text.find_last_of(" =") + 1);
    }
    ::pclose(output);
    if (!name.empty() && name.back() == '\n') name.pop_back();
    return name;
  }

  test::TempDir folder_;
};

TEST_F(HttpsServerTest, RenewedCertificateIsServedWithoutARestart) {
  MakeCa("ca");
  MakeCertificate("server", "ca");
  MakeCertificate("renewed", "ca");
  const auto server = HttpServer::Start(Tls());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(ServedName(PortOf(**server)), "server");
  std::filesystem::rename(Path("renewed.key"), Path("server.key"));
  std::filesystem::rename(Path("renewed.pem"), Path("server.pem"));
  EXPECT_EQ(ServedName(PortOf(**server)), "renewed");
}

TEST_F(HttpsServerTest, KeyThatDoesNotFitTheCertificateIsRefusedAtTheStart) {
  MakeCa("ca");
  MakeCertificate("server", "ca");
  MakeCertificate("other", "ca");
  HttpServer::Options options = Tls();
  options.tls_key = Path("other.key");
  EXPECT_TRUE(HasReason(HttpServer::Start(std::move(options)).status(), Reason::kInvalidRequest));
}

TEST_F(HttpsServerTest, OnlyOpenPathsAreServedWithoutAClientCertificateOfTheCa) {
  MakeCa("ca");
  MakeCa("stranger-ca");
  MakeCertificate("server", "ca");
  MakeCertificate("client", "ca");
  MakeCertificate("stranger", "stranger-ca");
  HttpServer::Options options = Tls();
  options.tls_client_ca = Path("ca.pem");
  options.open_paths = {"/healthz"};
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = PortOf(**server);

  httplib::SSLClient nobody("127.0.0.1", port);
  nobody.enable_server_certificate_verification(false);
  EXPECT_EQ(nobody.Get("/healthz")->status, 200);
  EXPECT_EQ(nobody.Get("/")->status, 403);
  EXPECT_EQ(nobody.Get("/healthz/")->status, 403);

  httplib::SSLClient client("127.0.0.1", port, Path("client.pem"), Path("client.key"));
  client.enable_server_certificate_verification(false);
  EXPECT_EQ(client.Get("/")->status, 200);

  httplib::SSLClient stranger("127.0.0.1", port, Path("stranger.pem"), Path("stranger.key"));
  stranger.enable_server_certificate_verification(false);
  EXPECT_FALSE(stranger.Get("/"));
  EXPECT_FALSE(stranger.Get("/healthz"));
}

}  // namespace
}  // namespace lowerd::server
