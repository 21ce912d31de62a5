#include "src/state/database.h"

#include <deque>
#include <fcntl.h>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include <soci/postgresql/soci-postgresql.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>
#include <sys/file.h>

#include "src/base/error.h"
#include "src/base/fd.h"
#include "src/state/schema.h"

namespace lowerd::state {
namespace {

constexpr absl::string_view kSqlitePrefix = "sqlite:";
// SQLite has one writer at a time, and a commit costs a flush of the disk whatever it holds: one
// thread commits what has gathered in one go. PostgreSQL groups the commits of its connections by
// itself; there a transaction of its own for each body keeps row locks short, and replicas from
// waiting for each other in a circle.
constexpr size_t kSqliteGroup = 512;
constexpr size_t kPostgresqlWriters = 4;
// Of each connection, as far as it is used.
constexpr int kSqliteCacheKib = 16 << 10;
// Of 4 KiB.
constexpr int kSqliteLogPages = 8 << 10;
constexpr size_t kReaders = 4;
// Tries of a body that other replicas get in the way of.
constexpr int kMaxTries = 10;
// A broken connection shows at its first use.
constexpr int kConnectionTries = 2;
constexpr absl::string_view kPostgresqlDiskFull = "53100";

// PostgreSQL's code of an error; empty for others.
std::string SqlState(const soci::soci_error& error) {
  const auto* postgresql = dynamic_cast<const soci::postgresql_soci_error*>(&error);
  return postgresql == nullptr ? "" : postgresql->sqlstate();
}

// Whether another replica was in the way, so that the same work can succeed when it is done again:
// serialisation failure, deadlock, or a row that the other has just inserted.
bool IsConflict(const soci::soci_error& error) {
  const std::string state = SqlState(error);
  return state == "40001" || state == "40P01" || state == "23505";
}

bool IsPostgresql(const std::string& location) {
  return absl::StartsWith(location, "postgresql://") || absl::StartsWith(location, "postgres://");
}

class DatabaseImpl final : public Database {
 public:
  DatabaseImpl(Engine engine, std::string name, std::string parameters, Fd lock)
      : engine_(engine),
        name_(std::move(name)),
        parameters_(std::move(parameters)),
        lock_(std::move(lock)) {}

  ~DatabaseImpl() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Init() {
    try {
      for (size_t i = 0; i < (engine_ == Engine::kSqlite ? 1 : kPostgresqlWriters); ++i) {
        writers_.push_back(std::make_unique<soci::session>());
        Connect(*writers_.back());
        if (i == 0) LOWERD_RETURN_IF_ERROR(Migrate(*writers_.back()));
      }
      for (size_t i = 0; i < kReaders; ++i) {
        auto reader = std::make_unique<soci::session>();
        Connect(*reader);
        absl::MutexLock lock(&readers_mutex_);
        readers_.push_back(std::move(reader));
      }
    } catch (const soci::soci_error& error) {
      return FromError(error, /*lost=*/false);
    }
    for (const auto& writer : writers_) {
      threads_.emplace_back([this, &session = *writer] { WriteLoop(session); });
    }
    return absl::OkStatus();
  }

  Engine engine() const override { return engine_; }

  absl::Status Write(const std::function<absl::Status(soci::session&)>& body) override {
    Pending pending{&body};
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return MakeError(Reason::kServerUnavailable, "the state store is closed");
      queue_.push_back(&pending);
    }
    pending.done.WaitForNotification();
    return std::move(pending.status);
  }

  absl::Status Read(const std::function<absl::Status(soci::session&)>& body) override {
    std::unique_ptr<soci::session> session;
    {
      absl::MutexLock lock(&readers_mutex_);
      readers_mutex_.Await(absl::Condition(
          +[](std::vector<std::unique_ptr<soci::session>>* readers) { return !readers->empty(); },
          &readers_));
      session = std::move(readers_.back());
      readers_.pop_back();
    }
    absl::Status status;
    for (int tries = 0; tries < kConnectionTries; ++tries) {
      status = Run(*session, [&](soci::session& s) {
        EnsureConnected(s);
        soci::transaction transaction(s);
        return body(s);
      });
      if (!absl::IsUnavailable(status)) break;
    }
    absl::MutexLock lock(&readers_mutex_);
    readers_.push_back(std::move(session));
    return status;
  }

 private:
  struct Pending {
    explicit Pending(const std::function<absl::Status(soci::session&)>* b) : body(b) {}

    const std::function<absl::Status(soci::session&)>* body;
    absl::Status status;
    absl::Notification done;
    int tries = 0;
    // The last try failed on another replica's work.
    bool conflict = false;
  };

  void Connect(soci::session& session) {
    if (engine_ == Engine::kPostgresql) {
      session.open(soci::postgresql, parameters_);
      // libpq prints notices to stderr.
      session << "SET client_min_messages = warning";
      return;
    }
    session.open(soci::sqlite3, parameters_);
    session << "PRAGMA journal_mode=WAL";
    // Acknowledged means on the disk.
    session << "PRAGMA synchronous=FULL";
    // New names land on pages all over their index. Room for these in memory, and a log that takes
    // many commits before it is copied back, triple the rate of new names.
    session << "PRAGMA cache_size=-" << kSqliteCacheKib;
    session << "PRAGMA wal_autocheckpoint=" << kSqliteLogPages;
  }

  // A connection that broke is made anew when it is next used.
  void EnsureConnected(soci::session& session) {
    if (session.is_connected()) return;
    session.close();
    Connect(session);
  }

  absl::Status Run(soci::session& session, const std::function<absl::Status(soci::session&)>& body,
                   bool* conflict = nullptr) {
    try {
      return body(session);
    } catch (const soci::soci_error& error) {
      if (conflict != nullptr) *conflict = IsConflict(error);
      return FromError(error, !session.is_connected());
    }
  }

  // `lost`: the connection is gone, whatever the error says.
  absl::Status FromError(const soci::soci_error& error, bool lost) const {
    std::string message = error.get_error_message();
    // SOCI puts its own function before SQLite's words.
    if (const size_t scope = message.find("::"); scope < message.find(' ')) {
      message.erase(0, message.find(": ") + 2);
    }
    if (absl::StrContains(message, "disk is full") || SqlState(error) == kPostgresqlDiskFull) {
      return MakeError(Reason::kStoreFull,
                       absl::StrCat("the disk of the server's state store is full; its operator "
                                    "must make room (",
                                    message, ")"));
    }
    if (lost || error.get_error_category() == soci::soci_error::connection_error) {
      return MakeError(Reason::kServerUnavailable,
                       absl::StrCat("the server cannot reach its state store: ", message));
    }
    return MakeError(Reason::kInternalError, absl::StrCat("state store ", name_, ": ", message));
  }

  void WriteLoop(soci::session& session) {
    const size_t max_group = engine_ == Engine::kSqlite ? kSqliteGroup : 1;
    while (true) {
      std::vector<Pending*> group;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](DatabaseImpl* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
              return self->stopping_ || !self->queue_.empty();
            },
            this));
        if (queue_.empty()) return;
        while (!queue_.empty() && group.size() < max_group) {
          group.push_back(queue_.front());
          queue_.pop_front();
        }
      }
      CommitGroup(session, group);
      std::vector<Pending*> again;
      for (Pending* pending : group) {
        const int max_tries = pending->conflict                      ? kMaxTries
                              : absl::IsUnavailable(pending->status) ? kConnectionTries
                                                                     : 1;
        if (!pending->status.ok() && ++pending->tries < max_tries) {
          again.push_back(pending);
        } else {
          pending->done.Notify();
        }
      }
      if (again.empty()) continue;
      absl::MutexLock lock(&mutex_);
      queue_.insert(queue_.begin(), again.begin(), again.end());
    }
  }

  // One transaction for all; each body has a savepoint of its own.
  void CommitGroup(soci::session& writer, const std::vector<Pending*>& group) {
    const auto body = [&](soci::session& session) {
      EnsureConnected(session);
      soci::transaction transaction(session);
      for (Pending* pending : group) {
        session << "SAVEPOINT body";
        pending->conflict = false;
        pending->status = Run(session, *pending->body, &pending->conflict);
        if (!pending->status.ok()) session << "ROLLBACK TO SAVEPOINT body";
        session << "RELEASE SAVEPOINT body";
      }
      transaction.commit();
      return absl::OkStatus();
    };
    bool conflict = false;
    const absl::Status commit = Run(writer, body, &conflict);
    for (Pending* pending : group) {
      if (!pending->status.ok()) continue;
      pending->status = commit;
      pending->conflict = conflict;
    }
  }

  const Engine engine_;
  // For errors; no password.
  const std::string name_;
  const std::string parameters_;
  // Held while SQLite's file is open, so that no second process opens it.
  const Fd lock_;
  // Each of one write loop only.
  std::vector<std::unique_ptr<soci::session>> writers_;

  absl::Mutex mutex_;
  std::deque<Pending*> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  absl::Mutex readers_mutex_;
  std::vector<std::unique_ptr<soci::session>> readers_ ABSL_GUARDED_BY(readers_mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace

absl::Status Database::CheckLocation(const std::string& location) {
  if (IsPostgresql(location)) return absl::OkStatus();
  if (absl::StartsWith(location, kSqlitePrefix) && location.size() > kSqlitePrefix.size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", location, "\" is neither sqlite:FILE nor postgresql://..."));
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& location) {
  if (const absl::Status status = CheckLocation(location); !status.ok()) {
    return FieldError("state", status.message());
  }
  std::unique_ptr<DatabaseImpl> database;
  absl::string_view path = location;
  if (absl::ConsumePrefix(&path, kSqlitePrefix)) {
    const std::string file(path);
    LOWERD_ASSIGN_OR_RETURN(Fd lock, OpenFile(file + ".lock", O_CREAT | O_RDWR));
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return MakeError(
          Reason::kOperationState,
          absl::StrCat("another lowerd uses ", file,
                       "; give each server a data directory of its own, or let several "
                       "share a PostgreSQL (--state)"));
    }
    database = std::make_unique<DatabaseImpl>(
        Engine::kSqlite, file, absl::StrCat("dbname=\"", file, "\" timeout=30"), std::move(lock));
  } else {
    database = std::make_unique<DatabaseImpl>(Engine::kPostgresql, "(PostgreSQL)", location, Fd());
  }
  LOWERD_RETURN_IF_ERROR(database->Init());
  return database;
}

}  // namespace lowerd::state
