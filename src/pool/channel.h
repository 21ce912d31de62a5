#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/message_lite.h"

#include "src/base/fd.h"

namespace lowerd::pool {

// No message between lowerd and its workers is larger.
inline constexpr size_t kMaxFrameBytes = size_t{64} << 20;
// Descriptors that can come with one frame.
inline constexpr size_t kMaxFrameFds = 200;

// One end of a SOCK_STREAM socketpair that carries frames (see worker.proto). Does not trust the
// other end: what is received is bounded and descriptors are taken only where they are wanted.
// Thread-compatible. Errors are INTERNAL_ERROR; they say "closed" when the other end is gone.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  // Two connected ends, close-on-exec.
  static absl::StatusOr<std::pair<Channel, Channel>> Pair();

  int fd() const { return socket_.get(); }
  Fd Release() { return std::move(socket_); }

  // For ends that may block. Send writes the whole frame, with duplicates of `fds`. Receive waits
  // for one whole frame and parses it; `fds`, if not null, receives the descriptors that came with
  // it.
  absl::Status Send(const google::protobuf::MessageLite& message, absl::Span<const int> fds = {});
  absl::Status Receive(google::protobuf::MessageLite& message, std::vector<Fd>* fds = nullptr);

  // For ends that poll; none of these blocks.
  //
  // Appends a frame to what is to be sent. Descriptors are borrowed until it is sent.
  absl::Status Queue(const google::protobuf::MessageLite& message, absl::Span<const int> fds = {});
  // Sends what the socket takes. Poll for POLLOUT while has_output().
  absl::Status Flush();
  bool has_output() const { return !output_.empty(); }
  // Reads what there is, at most about 1 MiB. With `take_fds`, descriptors are kept for
  // TakeFds(); else the kernel drops them. OK also when nothing was there. After an error, frames
  // that came before it can still be taken with Next.
  absl::Status Fill(bool take_fds);
  // The next whole frame that Fill has read: true and parsed into `message`, or false.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite& message);
  // The `count` oldest descriptors that have come; an error if there are fewer.
  absl::StatusOr<std::vector<Fd>> TakeFds(size_t count);

 private:
  struct Output {
    std::string bytes;
    size_t sent = 0;
    std::vector<int> fds;
  };

  absl::Status SendSome(Output& output, int flags);
  absl::Status ReceiveSome(size_t want, bool take_fds, int flags);

  Fd socket_;
  std::deque<Output> output_;
  // Received bytes from input_begin_ on are not yet parsed.
  std::string input_;
  size_t input_begin_ = 0;
  std::deque<Fd> input_fds_;
};

}  // namespace lowerd::pool
