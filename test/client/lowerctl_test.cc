// The real lowerctl as a child process and the client library against a server that misbehaves.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>

#include "client/client.h"
#include "src/base/error.h"
#include "src/base/fd.h"
#include "test/client/fake_lowerd.h"

namespace lowerd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string Pattern(size_t size, int seed) {
  std::string bytes(size, '\0');
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& c : bytes) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

class ClientTest : public ::testing::Test {
 protected:
  struct Result {
    int code;
    std::string out, err;
  };

  ClientTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("lowerctl-", getpid(), "-",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    ClientOptions options;
    options.server = fake_.address();
    options.initial_backoff = absl::Milliseconds(1);
    client_ = *Client::Create(options);
  }
  ~ClientTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string WriteFile(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  static std::string Contents(const std::string& path) {
    const auto bytes = ReadFileToString(path, 64 << 20);
    return bytes.ok() ? *bytes : "absent";
  }

  // Starts lowerctl against the fake server, output into files.
  pid_t Start(std::vector<std::string> arguments, rlim_t file_limit = RLIM_INFINITY) {
    if (std::find(arguments.begin(), arguments.end(), "--server") == arguments.end()) {
      arguments.insert(arguments.begin(), {"--server", fake_.address()});
    }
    arguments.insert(arguments.begin(), {LOWERCTL, "--retries", "0"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const Fd out = *OpenFile(Path("stdout"), O_CREAT | O_TRUNC | O_WRONLY);
    const Fd err = *OpenFile(Path("stderr"), O_CREAT | O_TRUNC | O_WRONLY);
    const pid_t pid = fork();
    if (pid == 0) {
      const rlimit limit = {file_limit, file_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
      signal(SIGXFSZ, SIG_IGN);
      dup2(out.get(), STDOUT_FILENO);
      dup2(err.get(), STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    return pid;
  }
  Result Wait(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), Contents(Path("stdout")),
            Contents(Path("stderr"))};
  }
  Result Run(std::vector<std::string> arguments) { return Wait(Start(std::move(arguments))); }

  absl::Status Upload(const std::vector<std::string>& paths) {
    std::vector<LocalFile> files;
    for (const std::string& path : paths) files.push_back(*LocalFile::Open(path));
    std::vector<const LocalFile*> pointers;
    for (const LocalFile& file : files) pointers.push_back(&file);
    return client_->Upload(pointers);
  }

  std::filesystem::path folder_;
  FakeLowerd fake_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, UploadGoesOnWhereEachCutLeftIt) {
  const std::string bytes = Pattern(3'500'000, 1);
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.cut_uploads_at = {1, 1 << 20, (1 << 20) + 1, 2'500'000, 3'499'999};
  }
  ASSERT_EQ(Upload({WriteFile("model", bytes)}), absl::OkStatus());
  EXPECT_EQ(fake_.Blob(bytes), bytes);
  absl::MutexLock lock(&fake_.mutex);
  EXPECT_THAT(fake_.write_starts, ElementsAre(0, 1, 1 << 20, (1 << 20) + 1, 2'500'000, 3'499'999));
}

TEST_F(ClientTest, UploadAcceptsThatTheServerHasTheBlobAlready) {
  const std::string bytes = Pattern(5'000'000, 2);
  fake_.AddBlob(bytes);
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.claim_missing = true;
  }
  EXPECT_EQ(Upload({WriteFile("model", bytes)}), absl::OkStatus());
}

TEST_F(ClientTest, FileThatChangesAfterItWasHashedIsRefused) {
  const std::string path = WriteFile("model", Pattern(2'000'000, 3));
  const LocalFile file = *LocalFile::Open(path);
  WriteFile("model", Pattern(2'000'000, 4));
  const LocalFile* files[] = {&file};
  EXPECT_TRUE(HasReason(client_->Upload(files), Reason::kDigestMismatch));
}

TEST_F(ClientTest, SmallFilesGoInBatchesBelowTheServersLimit) {
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.max_batch_bytes = 250;
  }
  std::vector<std::string> paths;
  for (int i = 0; i < 7; ++i) {
    paths.push_back(WriteFile(absl::StrCat("f", i), Pattern(100, 10 + i)));
  }
  paths.push_back(WriteFile("too large for a batch", Pattern(300, 20)));
  ASSERT_EQ(Upload(paths), absl::OkStatus());
  for (const std::string& path : paths) EXPECT_EQ(fake_.Blob(Contents(path)), Contents(path));
  absl::MutexLock lock(&fake_.mutex);
  EXPECT_THAT(fake_.batch_sizes, SizeIs(4));
  EXPECT_THAT(fake_.batch_sizes, ::testing::Each(::testing::Le(250)));
}

TEST_F(ClientTest, DownloadGoesOnWhereEachCutLeftIt) {
  const std::string bytes = Pattern(300'000, 5);
  fake_.AddBlob(bytes);
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.cut_downloads_at = {1, 65536, 299'999};
  }
  const DownloadItem items[] = {{Digest::Of(bytes), Path("got")}};
  ASSERT_EQ(client_->Download(items), absl::OkStatus());
  EXPECT_EQ(Contents(Path("got")), bytes);
}

TEST_F(ClientTest, DamagedDownloadIsFetchedAgainOnceThenFailsWithoutAFile) {
  const std::string bytes = Pattern(100'000, 6);
  fake_.AddBlob(bytes);
  const DownloadItem items[] = {{Digest::Of(bytes), Path("got")}};
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.corrupt_downloads = 1;
  }
  ASSERT_EQ(client_->Download(items), absl::OkStatus());
  EXPECT_EQ(Contents(Path("got")), bytes);
  std::filesystem::remove(Path("got"));
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.corrupt_downloads = 2;
  }
  EXPECT_THAT(std::string(client_->Download(items).message()),
              HasSubstr("do not have that digest"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(ClientTest, WatchIsSubscribedAgainAfterCuts) {
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.cut_watches = 12;
  }
  const auto operation = client_->Watch("operations/1");
  ASSERT_EQ(operation.status(), absl::OkStatus());
  EXPECT_TRUE(operation->done());
}

TEST_F(ClientTest, LowerModelIsTriedAgainUnderOneRequestId) {
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.lower_error = absl::UnavailableError("restarting");
  }
  EXPECT_TRUE(absl::IsUnavailable(client_->LowerModel({}).status()));
  absl::MutexLock lock(&fake_.mutex);
  ASSERT_THAT(fake_.request_ids, SizeIs(6));
  EXPECT_THAT(fake_.request_ids, ::testing::Each(fake_.request_ids[0]));
  EXPECT_THAT(fake_.request_ids[0], MatchesRegex("[0-9a-f-]{36}"));
}

TEST_F(ClientTest, LowerWritesArtifactsAndManifestAndNothingOnStderr) {
  const Result result = Run(
      {"lower", WriteFile("net.v2.pt", "model"), "--target", ".=reference", "--out", Path("out")});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(Contents(Path("out/net.v2.lowered.pt")), "artifact bytes");
  EXPECT_EQ(Contents(Path("out/manifest.json")), "{}");
}

TEST_F(ClientTest, JsonIsTheResultAndNothingElse) {
  const Result result =
      Run({"--json", "lower", WriteFile("net.pt", "model"), "--out", Path("out")});
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(nlohmann::json::parse(result.out, nullptr, false).contains("manifestDigest"))
      << result.out;
}

TEST_F(ClientTest, NothingIsLeftWhenAnOutputCannotBeWritten) {
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.artifact = Pattern(200'000, 7);
  }
  const std::string model = WriteFile("net.pt", "model");
  const Result result = Wait(Start({"lower", model, "--out", Path("out")}, 100'000));
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, MatchesRegex("lowerctl: INTERNAL \\[INTERNAL_ERROR\\]: cannot write "
                                       ".*net.lowered.pt.*too large\n"));
  EXPECT_TRUE(std::filesystem::is_empty(Path("out")));
}

TEST_F(ClientTest, FirstInterruptCancelsTheOperation) {
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.never_done = true;
  }
  const pid_t pid = Start({"lower", WriteFile("net.pt", "model"), "--out", Path("out")});
  {
    absl::MutexLock lock(&fake_.mutex);
    fake_.mutex.Await(absl::Condition(
        +[](int* watches) { return *watches > 0; }, &fake_.watches));
  }
  kill(pid, SIGINT);
  const Result result = Wait(pid);
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, StartsWith("lowerctl: CANCELLED [OPERATION_CANCELLED]: interrupted; "));
  absl::MutexLock lock(&fake_.mutex);
  EXPECT_THAT(fake_.cancelled, ElementsAre("operations/1"));
}

TEST_F(ClientTest, EveryReasonHasItsLineAndExitCodeAtTheStartAndInTheRun) {
  const std::string model = WriteFile("net.pt", "model");
  for (int i = 0; i <= static_cast<int>(Reason::kNotAllowed); ++i) {
    const Reason reason = static_cast<Reason>(i);
    absl::Status error = MakeError(reason, "what\nwhere");
    {
      absl::MutexLock lock(&fake_.mutex);
      fake_.lower_error = i % 2 == 0 ? error : absl::OkStatus();
      fake_.run_error = error;
    }
    const Result result = Run({"lower", model, "--out", Path("out")});
    EXPECT_EQ(result.err, absl::StrCat("lowerctl: ", absl::StatusCodeToString(error.code()), " [",
                                       ReasonName(reason), "]: what where\n"));
    int expected = 5;
    switch (error.code()) {
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kOutOfRange:
      case absl::StatusCode::kUnimplemented:
        expected = 3;
        break;
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kUnauthenticated:
      case absl::StatusCode::kPermissionDenied:
        expected = 4;
        break;
      default:
        break;
    }
    EXPECT_EQ(result.code, expected) << ReasonName(reason);
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(ClientTest, NothingAServerSaysCanSteerTheTerminal) {
  const Result result = Run({"backends"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out, HasSubstr("reference [31m second line"));
}

TEST_F(ClientTest, FailedHandshakeIsOneLineToo) {
  // This address is the fake server's as well, but not loopback by name: so lowerctl speaks TLS.
  const std::string port = fake_.address().substr(fake_.address().rfind(':'));
  const Result result = Run({"--server", "0.0.0.0" + port, "backends"});
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, MatchesRegex("lowerctl: UNAVAILABLE \\[SERVER_UNAVAILABLE\\]: [^\n]+\n"));
}

TEST_F(ClientTest, BadUsageIsOneLineAndExitCode2) {
  const std::string model = WriteFile("net.pt", "model");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"nosuch"},
                                             {"lower"},
                                             {"lower", Path("absent.pt")},
                                             {"lower", Path("")},
                                             {"lower", model, "--format", "onnx"},
                                             {"lower", model, "--nosuch"},
                                             {"lower", model, "--target", "a="},
                                             {"lower", model, "--timeout", "soon"},
                                             {"lower", model, "--extra-file", "x"},
                                             {"lower", model, "--spec", model},
                                             {"get", "abc", "-o", "x"},
                                             {"--token-file", model, "health"}}) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err,
                MatchesRegex("lowerctl: INVALID_ARGUMENT \\[INVALID_REQUEST\\]: [^\n]+\n"));
  }
}

}  // namespace
}  // namespace lowerd::client
