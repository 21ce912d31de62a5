#include "test/support/postgres_cluster.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <pwd.h>
#include <signal.h>
#include <stdexcept>
#include <thread>
#include <unistd.h>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>

namespace lowerd::test {
namespace {

// /usr/lib/postgresql/<newest>/bin
std::string Programs() {
  std::string newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib/postgresql", error)) {
    const std::string bin = entry.path().string() + "/bin";
    if (std::filesystem::exists(bin + "/postgres") && bin > newest) newest = bin;
  }
  if (newest.empty()) {
    throw std::runtime_error("PostgreSQL is not installed; run deploy/install-deps.sh test");
  }
  return newest;
}

// Starts a program, as user postgres if we are root (PostgreSQL refuses to run as root).
pid_t Spawn(std::vector<std::string> command, const std::string& log) {
  const passwd* user = ::geteuid() == 0 ? ::getpwnam("postgres") : nullptr;
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (user != nullptr && (::setgid(user->pw_gid) != 0 || ::setuid(user->pw_uid) != 0)) ::_exit(126);
  // After setuid, which clears it: a test program that dies leaves no server behind.
  if (::prctl(PR_SET_PDEATHSIG, SIGQUIT) != 0) ::_exit(126);
  if (::freopen(log.c_str(), "a", stdout) == nullptr || ::dup2(1, 2) < 0) ::_exit(126);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

void Run(std::vector<std::string> command, const std::string& log) {
  const std::string program = command.front();
  int status = 0;
  const pid_t pid = Spawn(std::move(command), log);
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || status != 0) {
    throw std::runtime_error(program + " failed; see " + log);
  }
}

}  // namespace

PostgresCluster::PostgresCluster() {
  const std::string bin = Programs(), data = folder_.File("data"), log = folder_.File("log");
  if (::geteuid() == 0) {
    const passwd* user = ::getpwnam("postgres");
    if (user == nullptr || ::chown(folder_.path().c_str(), user->pw_uid, user->pw_gid) != 0) {
      throw std::runtime_error("there is no user postgres");
    }
  }
  Run({bin + "/initdb", "-D", data, "-A", "trust", "-U", "lowerd", "--no-sync"}, log);
  Start();
}

void PostgresCluster::Start() {
  const std::string bin = Programs(), data = folder_.File("data"), log = folder_.File("log");
  pid_ = Spawn({bin + "/postgres", "-D", data, "-k", folder_.path(), "-c",
                "listen_addresses=", "-c", "max_connections=100"},
               log);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (true) {
    int status = 0;
    const pid_t ready = Spawn({bin + "/pg_isready", "-q", "-h", folder_.path()}, log);
    if (::waitpid(ready, &status, 0) == ready && status == 0) break;
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("PostgreSQL did not start");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

PostgresCluster::~PostgresCluster() { Stop(); }

void PostgresCluster::Stop() {
  if (pid_ <= 0) return;
  // PostgreSQL's fast shutdown: connections are cut, and the next start needs no recovery.
  ::kill(pid_, SIGINT);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string PostgresCluster::NewDatabase() {
  const std::string name = "db" + std::to_string(++databases_);
  Run({Programs() + "/createdb", "-h", folder_.path(), "-U", "lowerd", name}, folder_.File("log"));
  return "postgresql:///" + name + "?host=" + folder_.path() + "&user=lowerd";
}

}  // namespace lowerd::test
