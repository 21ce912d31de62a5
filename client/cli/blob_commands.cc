#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/output.h"
#include "src/base/error.h"

namespace lowerd::cli {
namespace {

// "hash/size" or "hash:size".
absl::StatusOr<Digest> ParseDigestFlag(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar("/:"));
  int64_t size;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &size)) {
    const absl::StatusOr<Digest> digest = Digest::Parse(parts[0], size);
    if (digest.ok()) return digest;
  }
  return UsageError(absl::StrCat("\"", text,
                                 "\" is no digest; write the SHA-256 in lower-case hexadecimal, "
                                 "a slash and the size in bytes"));
}

absl::Status PrintDigest(const Session& session, const Digest& digest) {
  if (!session.json) return Print(absl::StrCat(digest.ToString(), "\n"));
  build::bazel::remote::execution::v2::Digest proto;
  proto.set_hash(digest.hex());
  proto.set_size_bytes(digest.size_bytes());
  return PrintJson(proto);
}

absl::Status Put(Session& session, const std::string& path) {
  const absl::StatusOr<client::LocalFile> file =
      client::LocalFile::Open(path, session.progress.Bytes("hash"));
  if (!file.ok()) return AsUsageError(file.status());
  const client::LocalFile* files[] = {&*file};
  LOWERD_RETURN_IF_ERROR(session.client.Upload(files, session.progress.Bytes("upload")));
  session.progress.Clear();
  return PrintDigest(session, file->digest());
}

absl::Status Get(Session& session, const std::string& text, const std::string& path) {
  LOWERD_ASSIGN_OR_RETURN(const Digest digest, ParseDigestFlag(text));
  const client::DownloadItem items[] = {{digest, path == "-" ? "/dev/stdout" : path}};
  LOWERD_RETURN_IF_ERROR(session.client.Download(items, session.progress.Bytes("download")));
  session.progress.Clear();
  return session.json ? PrintDigest(session, digest) : absl::OkStatus();
}

}  // namespace

void AddBlobCommands(CLI::App& app, CommandSet& commands) {
  auto file = std::make_shared<std::string>();
  CLI::App* put =
      AddCommand(app, "put", "Upload a file and print its digest", "lowerctl put resnet18.pt");
  put->add_option("FILE", *file, "File to upload")->required();
  commands.Add(put, [file](Session& session) { return Put(session, *file); });

  auto digest = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  CLI::App* get =
      AddCommand(app, "get", "Download a blob and verify it", "lowerctl get 9f86d0…0a08/4 -o file");
  get->add_option("DIGEST", *digest, "SHA-256 and size, as hash/size or hash:size")->required();
  get->add_option("-o,--output", *out, "File to write, '-' for stdout")
      ->required()
      ->type_name("FILE");
  commands.Add(get, [digest, out](Session& session) { return Get(session, *digest, *out); });
}

}  // namespace lowerd::cli
