#include "server/authorizer.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "lowerd/v1/lowering.grpc.pb.h"
#include "server/client_identity.h"
#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/support/temp_dir.h"

namespace lowerd::server {
namespace {

// Says who called.
class Echo final : public v1::LoweringService::CallbackService {
 public:
  grpc::ServerUnaryReactor* InspectModel(grpc::CallbackServerContext* context,
                                         const v1::InspectModelRequest*,
                                         v1::ModelDescription* response) override {
    (void)response;
    identity = ClientIdentity(*context);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::string identity;
};

// A TLS server with certificates made on the spot, and clients of it.
class AuthorizerTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string ext = File("ext");
    std::ofstream(ext) << "subjectAltName=IP:127.0.0.1\n";
    const std::string in = "cd " + folder_.path() + " && ";
    Shell(in +
          "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca "
          "-days 2");
    for (const std::string name : {"server", "farm"}) {
      Shell(in + "openssl req -newkey rsa:2048 -nodes -keyout " + name + ".key -out " + name +
            ".csr -subj /CN=" + name);
      Shell(in + "openssl x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key " +
            "-CAcreateserial -out " + name + ".pem -days 2" +
            (name == "server" ? " -extfile ext" : ""));
    }
  }

  std::string File(const std::string& name) const { return folder_.File(name); }
  std::string Bytes(const std::string& name) const {
    return ReadFileToString(File(name), 1 << 20).value();
  }
  static void Shell(const std::string& command) {
    ASSERT_EQ(std::system((command + " >/dev/null 2>&1").c_str()), 0) << command;
  }
  void Write(const std::string& name, const std::string& text) {
    // A new file each time, as editors and orchestrators do it.
    std::ofstream(File(name + ".new")) << text;
    ASSERT_EQ(std::rename(File(name + ".new").c_str(), File(name).c_str()), 0);
  }
  static std::string TokenLine(const std::string& name, const std::string& token) {
    return absl::StrCat(name, " never sha256:", Digest::Of(token).hex(), "\n");
  }

  void Start(const Authorizer::Options& options) {
    authorizer_ = Authorizer::Create(options).value();
    grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    ssl.pem_root_certs = Bytes("ca.pem");
    ssl.pem_key_cert_pairs.push_back({Bytes("server.key"), Bytes("server.pem")});
    auto credentials = grpc::SslServerCredentials(ssl);
    credentials->SetAuthMetadataProcessor(authorizer_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  grpc::Status Call(const std::string& token, bool with_certificate = false) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = Bytes("ca.pem");
    if (with_certificate) {
      ssl.pem_private_key = Bytes("farm.key");
      ssl.pem_cert_chain = Bytes("farm.pem");
    }
    const auto channel =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::SslCredentials(ssl));
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ModelDescription response;
    return v1::LoweringService::NewStub(channel)->InspectModel(&context, {}, &response);
  }

  test::TempDir folder_;
  Echo service_;
  std::shared_ptr<Authorizer> authorizer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(AuthorizerTest, RefusedCallsAreToldWithTheirReason) {
  Write("tokens", TokenLine("dev", "secret"));
  Write("policy", R"({"name": "p", "allow_rules": [
      {"name": "farm", "source": {"principals": ["farm"]}}]})");
  absl::Mutex mutex;
  std::vector<Reason> told;
  Start({File("tokens"), File("policy"), [&](const absl::Status& status) {
           absl::MutexLock lock(&mutex);
           for (const Reason reason : {Reason::kNotAuthenticated, Reason::kNotAllowed}) {
             if (HasReason(status, reason)) told.push_back(reason);
           }
         }});
  EXPECT_FALSE(Call("wrong").ok());
  EXPECT_FALSE(Call("secret").ok());
  EXPECT_TRUE(Call("", /*with_certificate=*/true).ok());
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(told, (std::vector<Reason>{Reason::kNotAuthenticated, Reason::kNotAllowed}));
}

TEST_F(AuthorizerTest, TokensAndCertificatesNameTheirBearers) {
  Write("tokens", TokenLine("dev", "secret"));
  Start({File("tokens"), ""});
  EXPECT_TRUE(Call("secret").ok());
  EXPECT_EQ(service_.identity, "dev");
  EXPECT_TRUE(Call("", /*with_certificate=*/true).ok());
  EXPECT_EQ(service_.identity, "farm");
  EXPECT_EQ(Call("").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Call("wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // A wrong token is not made good by a certificate.
  EXPECT_EQ(Call("wrong", true).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AuthorizerTest, PolicyGoesByNamesOfTokensAndCertificatesAndByPaths) {
  Write("tokens", TokenLine("dev", "secret") + TokenLine("ci", "other"));
  Write("policy", R"({"name": "p", "allow_rules": [
      {"name": "a", "source": {"principals": ["dev", "farm"]},
       "request": {"paths": ["/lowerd.v1.LoweringService/InspectModel"]}}]})");
  Start({File("tokens"), File("policy")});
  EXPECT_TRUE(Call("secret").ok());
  EXPECT_TRUE(Call("", true).ok());
  const grpc::Status denied = Call("other");
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_NE(denied.error_message().find("InspectModel"), std::string::npos);
}

TEST_F(AuthorizerTest, FilesAreReadAgainAndWrongOnesChangeNothing) {
  Write("tokens", TokenLine("dev", "secret"));
  Write("policy", R"({"name": "p", "allow_rules": [{"name": "all"}]})");
  Start({File("tokens"), File("policy")});
  EXPECT_TRUE(Call("secret").ok());
  Write("tokens", TokenLine("dev", "changed"));
  authorizer_->Reload();
  EXPECT_FALSE(Call("secret").ok());
  EXPECT_TRUE(Call("changed").ok());
  Write("tokens", "rubbish");
  Write("policy", "{");
  authorizer_->Reload();
  EXPECT_TRUE(Call("changed").ok());
  Write("policy", R"({"name": "p", "allow_rules": [
      {"name": "nobody", "source": {"principals": ["nobody"]}}]})");
  authorizer_->Reload();
  EXPECT_EQ(Call("changed").error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AuthorizerTest, FilesThatAreWrongAtTheStartAreErrors) {
  Write("tokens", "rubbish");
  Write("policy", "{");
  EXPECT_TRUE(
      HasReason(Authorizer::Create({File("tokens"), ""}).status(), Reason::kInvalidRequest));
  EXPECT_TRUE(
      HasReason(Authorizer::Create({"", File("policy")}).status(), Reason::kInvalidRequest));
  EXPECT_TRUE(
      HasReason(Authorizer::Create({"", File("absent")}).status(), Reason::kInvalidRequest));
}

}  // namespace
}  // namespace lowerd::server
