#include "client/cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <sys/ioctl.h>

#include "client/cli/text.h"
#include "client/client.h"

namespace lowerd::cli {
namespace {

constexpr int kBarCells = 24;
// More often than this nobody sees.
constexpr absl::Duration kRedrawEvery = absl::Milliseconds(50);

size_t TerminalColumns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Bar(double fraction) {
  if (fraction < 0) return std::string(kBarCells + 2, ' ');
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kBarCells);
  return absl::StrCat("[", std::string(full, '#'), std::string(kBarCells - full, '.'), "]");
}

}  // namespace

client::ByteProgress Progress::Bytes(std::string stage) {
  if (style_ == ProgressStyle::kNone) return {};
  return [this, stage = std::move(stage)](int64_t done, int64_t total) {
    const double fraction = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
    Draw(stage, fraction, absl::StrCat(FormatBytes(done), " of ", FormatBytes(total)),
         done >= total);
  };
}

void Progress::Show(const google::longrunning::Operation& operation) {
  if (style_ == ProgressStyle::kNone || operation.done()) return;
  const lowerd::v1::LowerModelMetadata at = client::LoweringProgress(operation);
  std::string stage = absl::AsciiStrToLower(lowerd::v1::LowerModelMetadata::State_Name(at.state()));
  if (stage.empty()) stage = "running";
  double fraction = -1;
  std::string detail;
  if (at.state() == lowerd::v1::LowerModelMetadata::QUEUED && at.queue_position() > 0) {
    detail = absl::StrCat("position ", at.queue_position());
  } else if (at.targets_total() > 0) {
    fraction = static_cast<double>(at.targets_done()) / at.targets_total();
    detail = absl::StrCat(at.targets_done(), " of ", at.targets_total(), " targets");
  }
  if (at.attempt() > 1) absl::StrAppend(&detail, detail.empty() ? "" : ", ", "try ", at.attempt());
  Draw(stage, fraction, detail, true);
}

void Progress::Draw(absl::string_view stage, double fraction, absl::string_view detail, bool last) {
  absl::MutexLock lock(&mutex_);
  const bool new_stage = stage_ != stage;
  stage_ = std::string(stage);
  if (style_ == ProgressStyle::kLines) {
    if (new_stage) absl::FPrintF(stderr, "%s%s%s\n", stage, detail.empty() ? "" : ": ", detail);
    return;
  }
  const absl::Time now = absl::Now();
  if (!new_stage && !last && now - drawn_ < kRedrawEvery) return;
  drawn_ = now;
  visible_ = true;
  std::string line = absl::StrFormat("%-12s %s ", stage, Bar(fraction));
  if (fraction >= 0) absl::StrAppendFormat(&line, "%3.0f%%  ", fraction * 100);
  absl::StrAppend(&line, detail);
  // A line that wraps could not be drawn over.
  line.resize(std::min(line.size(), TerminalColumns() - 1));
  absl::FPrintF(stderr, "\r%s\x1b[K", line);
  std::fflush(stderr);
}

void Progress::Clear() {
  absl::MutexLock lock(&mutex_);
  if (!visible_) return;
  visible_ = false;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace lowerd::cli
