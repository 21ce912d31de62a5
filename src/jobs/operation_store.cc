#include "src/jobs/operation_store.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <soci/soci.h>

#include "src/base/error.h"

namespace lowerd::jobs {
namespace {

constexpr char kOperationColumns[] =
    "name, client, request_id, action_key, inputs, priority, state, targets_done, targets_total, "
    "attempt, cancel_requested, cached, error, result, outputs, created, started, updated, ended";
constexpr char kJobColumns[] = "id, action_key, client, request, inputs, priority, bypass, attempt";

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }
std::string Unhex(const std::string& hex) { return absl::HexStringToBytes(hex); }
long long Micros(absl::Time time) { return absl::ToUnixMicros(time); }

// A statement whose values are bound one by one; `use`d values must outlive it.
class Query {
 public:
  explicit Query(soci::session& session) : statement_(session) {}

  template <typename T>
  Query& Into(T& value) {
    statement_.exchange(soci::into(value));
    return *this;
  }
  template <typename T>
  Query& Use(const T& value) {
    statement_.exchange(soci::use(value));
    return *this;
  }
  void Run(const std::string& sql) {
    statement_.alloc();
    statement_.prepare(sql);
    statement_.define_and_bind();
    statement_.execute();
  }
  bool Fetch() { return statement_.fetch(); }

 private:
  soci::statement statement_;
};

struct OperationRow {
  std::string name, client, request_id, action_key, inputs, error, result, outputs;
  long long priority = 0, state = 0, targets_done = 0, targets_total = 0, attempt = 0,
            cancel_requested = 0, cached = 0, created = 0, started = 0, updated = 0, ended = 0;

  void BindTo(Query& query) {
    query.Into(name).Into(client).Into(request_id).Into(action_key).Into(inputs).Into(priority);
    query.Into(state).Into(targets_done).Into(targets_total).Into(attempt).Into(cancel_requested);
    query.Into(cached).Into(error).Into(result).Into(outputs).Into(created).Into(started);
    query.Into(updated).Into(ended);
  }

  Operation ToOperation() const {
    Operation out;
    out.name = name;
    out.client = client;
    out.request_id = request_id;
    out.action_key = action_key;
    out.inputs = DecodeDigests(inputs);
    out.priority = static_cast<int>(priority);
    out.progress.state = static_cast<State>(state);
    out.progress.targets_done = static_cast<int>(targets_done);
    out.progress.targets_total = static_cast<int>(targets_total);
    out.attempt = static_cast<int>(attempt);
    out.cancel_requested = cancel_requested != 0;
    out.cached = cached != 0;
    if (!error.empty()) out.error = ParseStatus(Unhex(error));
    out.result = Unhex(result);
    out.outputs = DecodeDigests(outputs);
    out.created = absl::FromUnixMicros(created);
    if (started != 0) out.started = absl::FromUnixMicros(started);
    out.updated = absl::FromUnixMicros(updated);
    if (ended != 0) out.ended = absl::FromUnixMicros(ended);
    return out;
  }
};

struct JobRow {
  std::string id, action_key, client, request, inputs;
  long long priority = 0, bypass = 0, attempt = 0;

  void BindTo(Query& query) {
    query.Into(id).Into(action_key).Into(client).Into(request).Into(inputs).Into(priority);
    query.Into(bypass).Into(attempt);
  }

  Job ToJob() const {
    Job out;
    out.id = id;
    out.action_key = action_key;
    out.client = client;
    out.request = Unhex(request);
    out.inputs = DecodeDigests(inputs);
    out.priority = static_cast<int>(priority);
    out.bypass_cache = bypass != 0;
    out.attempt = static_cast<int>(attempt);
    return out;
  }
};

std::vector<std::string> Texts(soci::session& session, const std::string& sql,
                               const std::vector<std::string>& uses) {
  std::string text;
  Query query(session);
  query.Into(text);
  for (const std::string& use : uses) query.Use(use);
  query.Run(sql);
  std::vector<std::string> out;
  while (query.Fetch()) out.push_back(text);
  return out;
}

}  // namespace

std::string EncodeDigests(const std::vector<Digest>& digests) {
  std::string out;
  for (const Digest& digest : digests) {
    absl::StrAppend(&out, out.empty() ? "" : " ", digest.ToString());
  }
  return out;
}

std::vector<Digest> DecodeDigests(const std::string& text) {
  std::vector<Digest> out;
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(part, '/');
    int64_t size;
    if (!absl::SimpleAtoi(halves.second, &size)) continue;
    const auto digest = Digest::Parse(halves.first, size);
    if (digest.ok()) out.push_back(*digest);
  }
  return out;
}

std::optional<Operation> OperationStore::Find(const std::string& name) {
  OperationRow row;
  Query query(session_);
  row.BindTo(query);
  query.Use(name);
  query.Run(absl::StrCat("SELECT ", kOperationColumns, " FROM operations WHERE name = :n"));
  if (!query.Fetch()) return std::nullopt;
  return row.ToOperation();
}

std::optional<Operation> OperationStore::FindByRequest(const std::string& client,
                                                       const std::string& request_id) {
  OperationRow row;
  Query query(session_);
  row.BindTo(query);
  query.Use(client).Use(request_id);
  query.Run(absl::StrCat("SELECT ", kOperationColumns,
                         " FROM operations WHERE client = :c AND request_id = :r"));
  if (!query.Fetch()) return std::nullopt;
  return row.ToOperation();
}

void OperationStore::Insert(const Operation& o, const std::string& job) {
  const std::string inputs = EncodeDigests(o.inputs), outputs = EncodeDigests(o.outputs),
                    error = o.error.ok() ? "" : Hex(SerializeStatus(o.error)),
                    result = Hex(o.result);
  const long long priority = o.priority, state = static_cast<long long>(o.progress.state),
                  targets_done = o.progress.targets_done, targets_total = o.progress.targets_total,
                  attempt = o.attempt, cached = o.cached, failed = !o.error.ok(),
                  created = Micros(o.created), started = o.started ? Micros(*o.started) : 0,
                  updated = Micros(o.updated), ended = o.ended ? Micros(*o.ended) : 0;
  session_
      << "INSERT INTO operations (name, client, request_id, job, action_key, inputs, priority, "
         "state, targets_done, targets_total, attempt, cancel_requested, cached, failed, error, "
         "result, outputs, created, started, updated, ended) VALUES (:a, :b, :c, :d, :e, :f, "
         ":g, :h, :i, :j, :k, 0, :l, :m, :n, :o, :p, :q, :r, :s, :t)",
      soci::use(o.name), soci::use(o.client), soci::use(o.request_id), soci::use(job),
      soci::use(o.action_key), soci::use(inputs), soci::use(priority), soci::use(state),
      soci::use(targets_done), soci::use(targets_total), soci::use(attempt), soci::use(cached),
      soci::use(failed), soci::use(error), soci::use(result), soci::use(outputs),
      soci::use(created), soci::use(started), soci::use(updated), soci::use(ended);
}

std::vector<Operation> OperationStore::List(const JobService::Filter& filter, int limit,
                                            const std::string& after_time,
                                            const std::string& after_name) {
  std::string where = "WHERE 1 = 1";
  const long long done = static_cast<long long>(State::kDone);
  if (filter.state) absl::StrAppend(&where, " AND state = ", static_cast<int>(*filter.state));
  if (filter.done) absl::StrAppend(&where, " AND state ", *filter.done ? "= " : "<> ", done);
  if (filter.failed) {
    absl::StrAppend(&where, " AND state = ", done, " AND failed = ", *filter.failed ? 1 : 0);
  }
  OperationRow row;
  Query query(session_);
  row.BindTo(query);
  long long time = 0;
  if (absl::SimpleAtoi(after_time, &time)) {
    absl::StrAppend(&where, " AND (created < :t OR (created = :s AND name < :n))");
    query.Use(time).Use(time).Use(after_name);
  }
  query.Run(absl::StrCat("SELECT ", kOperationColumns, " FROM operations ", where,
                         " ORDER BY created DESC, name DESC LIMIT ", limit));
  std::vector<Operation> out;
  while (query.Fetch()) out.push_back(row.ToOperation());
  return out;
}

void OperationStore::SetProgress(const Job& job, const Progress& progress) {
  const long long state = static_cast<long long>(progress.state), done = progress.targets_done,
                  total = progress.targets_total, tries = job.attempt, now = Micros(absl::Now()),
                  ended = static_cast<long long>(State::kDone);
  session_
      << "UPDATE operations SET state = :a, targets_done = :b, targets_total = :c, attempt = "
         ":d, updated = :e, started = CASE WHEN started = 0 THEN :f ELSE started END WHERE job "
         "= :g AND state <> :h",
      soci::use(state), soci::use(done), soci::use(total), soci::use(tries), soci::use(now),
      soci::use(now), soci::use(job.id), soci::use(ended);
}

std::vector<std::string> OperationStore::EndAll(const std::string& job, const absl::Status& error,
                                                const std::string& result,
                                                const std::vector<Digest>& outputs) {
  const long long done = static_cast<long long>(State::kDone), now = Micros(absl::Now()),
                  failed = !error.ok();
  const std::vector<std::string> names =
      Texts(session_,
            absl::StrCat("SELECT name FROM operations WHERE job = :j AND state <> ", done), {job});
  const std::string hex_error = error.ok() ? "" : Hex(SerializeStatus(error)),
                    hex_result = Hex(result), encoded = EncodeDigests(outputs);
  session_
      << "UPDATE operations SET state = :a, failed = :b, error = :c, result = :d, outputs = :e, "
         "updated = :f, ended = :g WHERE job = :h AND state <> :i",
      soci::use(done), soci::use(failed), soci::use(hex_error), soci::use(hex_result),
      soci::use(encoded), soci::use(now), soci::use(now), soci::use(job), soci::use(done);
  return names;
}

bool OperationStore::End(const std::string& name, const absl::Status& error) {
  const auto before = Find(name);
  if (!before || before->done()) return false;
  const long long done = static_cast<long long>(State::kDone), now = Micros(absl::Now()),
                  failed = 1;
  const std::string hex_error = Hex(SerializeStatus(error));
  session_ << "UPDATE operations SET state = :a, failed = :b, error = :c, cancel_requested = 1, "
              "updated = :d, ended = :e WHERE name = :f AND state <> :g",
      soci::use(done), soci::use(failed), soci::use(hex_error), soci::use(now), soci::use(now),
      soci::use(name), soci::use(done);
  return true;
}

void OperationStore::Delete(const std::string& name) {
  session_ << "DELETE FROM operations WHERE name = :n", soci::use(name);
}

int OperationStore::DeleteEndedBefore(absl::Time time) {
  const long long limit = Micros(time);
  soci::statement statement =
      (session_.prepare << "DELETE FROM operations WHERE ended <> 0 AND ended < :t",
       soci::use(limit));
  statement.execute(true);
  return static_cast<int>(statement.get_affected_rows());
}

std::string OperationStore::JobOf(const std::string& operation) {
  const auto jobs = Texts(session_, "SELECT job FROM operations WHERE name = :n", {operation});
  return jobs.empty() ? "" : jobs.front();
}

std::vector<std::string> OperationStore::OperationsOf(const std::string& job) {
  return Texts(session_,
               absl::StrCat("SELECT name FROM operations WHERE job = :j AND state <> ",
                            static_cast<int>(State::kDone)),
               {job});
}

const char* OperationStore::ForUpdate() const {
  // SQLite has one writer at a time and no such words.
  return session_.get_backend_name() == "postgresql" ? " FOR UPDATE" : "";
}

std::optional<OperationStore::InFlight> OperationStore::FindJob(const std::string& action_key) {
  std::string id;
  long long timeout = 0;
  Query query(session_);
  query.Into(id).Into(timeout).Use(action_key);
  query.Run(absl::StrCat(
      "SELECT id, timeout FROM jobs WHERE action_key = :k AND bypass = 0 AND cancelled = 0",
      ForUpdate()));
  if (!query.Fetch()) return std::nullopt;
  return InFlight{id, absl::Microseconds(timeout)};
}

std::optional<bool> OperationStore::LockJob(const std::string& id) {
  long long running = 0;
  Query query(session_);
  query.Into(running).Use(id);
  query.Run(absl::StrCat("SELECT running FROM jobs WHERE id = :i", ForUpdate()));
  if (!query.Fetch()) return std::nullopt;
  return running != 0;
}

bool OperationStore::LockClaimed(const Job& job) {
  const long long attempt = job.attempt;
  std::string id;
  Query query(session_);
  query.Into(id).Use(job.id).Use(job.replica).Use(attempt);
  query.Run(absl::StrCat(
      "SELECT id FROM jobs WHERE id = :i AND replica = :r AND attempt = :a AND running = 1",
      ForUpdate()));
  return query.Fetch();
}

void OperationStore::RaisePriority(const std::string& id, int priority) {
  const long long wanted = priority;
  session_ << "UPDATE jobs SET priority = :p WHERE id = :i AND running = 0 AND priority < :q",
      soci::use(wanted), soci::use(id), soci::use(wanted);
}

void OperationStore::InsertJob(const Job& job) {
  const std::string request = Hex(job.request), inputs = EncodeDigests(job.inputs);
  const long long priority = job.priority, bypass = job.bypass_cache, now = Micros(absl::Now()),
                  timeout = absl::ToInt64Microseconds(job.timeout);
  session_
      << "INSERT INTO jobs (id, action_key, client, priority, bypass, request, inputs, running, "
         "replica, lease, attempt, cancelled, created, timeout) VALUES (:a, :b, :c, :d, :e, :f, "
         ":g, 0, '', 0, 0, 0, :h, :i)",
      soci::use(job.id), soci::use(job.action_key), soci::use(job.client), soci::use(priority),
      soci::use(bypass), soci::use(request), soci::use(inputs), soci::use(now), soci::use(timeout);
}

void OperationStore::DeleteJob(const std::string& id) {
  session_ << "DELETE FROM jobs WHERE id = :i", soci::use(id);
}

int OperationStore::CountQueued() {
  long long count = 0;
  session_ << "SELECT COUNT(*) FROM jobs WHERE running = 0", soci::into(count);
  return static_cast<int>(count);
}

int OperationStore::CountQueued(const std::string& client) {
  long long count = 0;
  session_ << "SELECT COUNT(*) FROM jobs WHERE running = 0 AND client = :c", soci::use(client),
      soci::into(count);
  return static_cast<int>(count);
}

int OperationStore::Position(const std::string& job) {
  long long priority = 0, created = 0, ahead = 0;
  session_ << "SELECT priority, created FROM jobs WHERE id = :i AND running = 0", soci::use(job),
      soci::into(priority), soci::into(created);
  if (!session_.got_data()) return 0;
  session_
      << "SELECT COUNT(*) FROM jobs WHERE running = 0 AND (priority > :p OR (priority = :q AND "
         "created < :c))",
      soci::use(priority), soci::use(priority), soci::use(created), soci::into(ahead);
  return static_cast<int>(ahead) + 1;
}

std::vector<std::string> OperationStore::WaitingClients() {
  return Texts(session_,
               "SELECT DISTINCT client FROM jobs WHERE running = 0 AND priority = (SELECT "
               "MAX(priority) FROM jobs WHERE running = 0)",
               {});
}

std::optional<Job> OperationStore::Claim(const std::string& client, const std::string& replica,
                                         absl::Time lease) {
  JobRow row;
  {
    Query query(session_);
    row.BindTo(query);
    query.Use(client);
    // On PostgreSQL several replicas look at once: each skips what another is just taking.
    const bool skip = session_.get_backend_name() == "postgresql";
    query.Run(absl::StrCat("SELECT ", kJobColumns,
                           " FROM jobs WHERE running = 0 AND client = :c ORDER BY priority DESC, "
                           "created, id LIMIT 1",
                           skip ? " FOR UPDATE SKIP LOCKED" : ""));
    if (!query.Fetch()) return std::nullopt;
  }
  const long long until = Micros(lease);
  session_
      << "UPDATE jobs SET running = 1, replica = :r, lease = :l, attempt = attempt + 1 WHERE id "
         "= :i",
      soci::use(replica), soci::use(until), soci::use(row.id);
  Job job = row.ToJob();
  job.replica = replica;
  ++job.attempt;
  Progress progress;
  progress.state = State::kLoading;
  SetProgress(job, progress);
  return job;
}

void OperationStore::Renew(const std::string& replica, absl::Time lease) {
  const long long until = Micros(lease);
  session_ << "UPDATE jobs SET lease = :l WHERE running = 1 AND replica = :r", soci::use(until),
      soci::use(replica);
}

void OperationStore::Unclaim(const std::string& id) {
  session_ << "DELETE FROM jobs WHERE id = :i AND cancelled = 1", soci::use(id);
  session_ << "UPDATE jobs SET running = 0, replica = '' WHERE id = :i", soci::use(id);
  Job queued;
  queued.id = id;
  SetProgress(queued, Progress());
}

void OperationStore::GiveBack(const Job& job) {
  session_ << "UPDATE jobs SET attempt = attempt - 1 WHERE id = :i", soci::use(job.id);
  Unclaim(job.id);
}

int OperationStore::RequeueExpired(absl::Time time) {
  const auto ids = Texts(session_,
                         absl::StrCat("SELECT id FROM jobs WHERE running = 1 AND lease < ",
                                      Micros(time), " ORDER BY id", ForUpdate()),
                         {});
  for (const std::string& id : ids) Unclaim(id);
  return static_cast<int>(ids.size());
}

void OperationStore::RequeueOf(const std::string& replica, const std::string& id) {
  std::string found;
  {
    Query query(session_);
    query.Into(found).Use(id).Use(replica);
    query.Run(absl::StrCat("SELECT id FROM jobs WHERE id = :i AND replica = :r AND running = 1",
                           ForUpdate()));
    if (!query.Fetch()) return;
  }
  Unclaim(id);
}

void OperationStore::SetCancelled(const std::string& id) {
  session_ << "UPDATE jobs SET cancelled = 1 WHERE id = :i", soci::use(id);
}

std::vector<std::string> OperationStore::WantedJobs(const std::string& replica) {
  return Texts(session_, "SELECT id FROM jobs WHERE running = 1 AND cancelled = 0 AND replica = :r",
               {replica});
}

std::vector<std::string> OperationStore::AllJobs() {
  return Texts(session_, "SELECT id FROM jobs", {});
}

std::vector<Job> OperationStore::QueuedJobs() {
  JobRow row;
  Query query(session_);
  row.BindTo(query);
  query.Run(absl::StrCat("SELECT ", kJobColumns,
                         " FROM jobs WHERE running = 0 ORDER BY priority DESC, created, id"));
  std::vector<Job> out;
  while (query.Fetch()) out.push_back(row.ToJob());
  return out;
}

std::optional<CachedAction> OperationStore::FindAction(const std::string& action_key) {
  std::string result, outputs;
  session_ << "SELECT result, outputs FROM actions WHERE action_key = :k", soci::use(action_key),
      soci::into(result), soci::into(outputs);
  if (!session_.got_data()) return std::nullopt;
  return CachedAction{Unhex(result), DecodeDigests(outputs)};
}

void OperationStore::PutAction(const std::string& action_key, const CachedAction& action) {
  const std::string result = Hex(action.result), outputs = EncodeDigests(action.outputs);
  const long long now = Micros(absl::Now());
  session_
      << "INSERT INTO actions (action_key, result, outputs, created) VALUES (:k, :r, :o, :c) ON "
         "CONFLICT (action_key) DO UPDATE SET result = excluded.result, outputs = "
         "excluded.outputs, created = excluded.created",
      soci::use(action_key), soci::use(result), soci::use(outputs), soci::use(now);
}

void OperationStore::DeleteAction(const std::string& action_key) {
  session_ << "DELETE FROM actions WHERE action_key = :k", soci::use(action_key);
}

void OperationStore::DeleteActionsBefore(absl::Time time) {
  const long long limit = Micros(time);
  session_ << "DELETE FROM actions WHERE created < :t", soci::use(limit);
}

}  // namespace lowerd::jobs
