#include "src/pool/channel.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>

#include "src/base/error.h"

namespace lowerd::pool {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kMaxFillBytes = size_t{1} << 20;

std::string EncodeLength(size_t length) {
  std::string header(kHeaderBytes, '\0');
  for (size_t i = 0; i < kHeaderBytes; ++i) header[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return header;
}

size_t DecodeLength(const char* header) {
  size_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    length |= size_t{static_cast<uint8_t>(header[i])} << (8 * i);
  }
  return length;
}

absl::Status Closed() {
  return MakeError(Reason::kInternalError, "the worker channel is closed at the other end");
}

absl::StatusOr<std::string> Encode(const google::protobuf::MessageLite& message,
                                   absl::Span<const int> fds) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes || fds.size() > kMaxFrameFds) {
    return MakeError(Reason::kLimitExceeded,
                     absl::StrCat("a message of ", size, " bytes with ", fds.size(),
                                  " files is over a worker channel's limit of ", kMaxFrameBytes,
                                  " bytes and ", kMaxFrameFds, " files"));
  }
  std::string bytes = EncodeLength(size);
  if (!message.AppendToString(&bytes)) {
    return MakeError(Reason::kInternalError, "a worker message cannot be serialised");
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::pair<Channel, Channel>> Channel::Pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "making a worker channel");
  }
  return std::pair<Channel, Channel>(Channel(Fd(ends[0])), Channel(Fd(ends[1])));
}

// Sends a part of `output` by one call. Descriptors ride with the first byte.
absl::Status Channel::SendSome(Output& output, int flags) {
  iovec iov{output.bytes.data() + output.sent, output.bytes.size() - output.sent};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  if (output.sent == 0 && !output.fds.empty()) {
    const size_t bytes = sizeof(int) * output.fds.size();
    std::memset(control, 0, sizeof control);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(rights), output.fds.data(), bytes);
  }
  const ssize_t n = ::sendmsg(socket_.get(), &header, flags | MSG_NOSIGNAL);
  if (n >= 0) {
    output.sent += static_cast<size_t>(n);
    return absl::OkStatus();
  }
  if (errno == EINTR || errno == EAGAIN) return absl::OkStatus();
  if (errno == EPIPE || errno == ECONNRESET) return Closed();
  return ErrnoError(errno, "sending to a worker channel");
}

// Appends what one call gives, up to `want` bytes. Gives "closed" at the end of the stream.
absl::Status Channel::ReceiveSome(size_t want, bool take_fds, int flags) {
  if (input_begin_ > 0) {
    input_.erase(0, input_begin_);
    input_begin_ = 0;
  }
  const size_t old_size = input_.size();
  input_.resize(old_size + want);
  iovec iov{input_.data() + old_size, want};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFrameFds)];
  if (take_fds) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  const ssize_t n = ::recvmsg(socket_.get(), &header, flags | MSG_CMSG_CLOEXEC);
  const int error_number = errno;
  input_.resize(old_size + (n > 0 ? static_cast<size_t>(n) : 0));
  if (n == 0) return Closed();
  if (n < 0) {
    if (error_number == EINTR || error_number == EAGAIN) return absl::OkStatus();
    if (error_number == ECONNRESET) return Closed();
    return ErrnoError(error_number, "receiving from a worker channel");
  }
  if (!take_fds) return absl::OkStatus();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      input_fds_.emplace_back(fd);
    }
  }
  return absl::OkStatus();
}

absl::Status Channel::Send(const google::protobuf::MessageLite& message,
                           absl::Span<const int> fds) {
  LOWERD_RETURN_IF_ERROR(Queue(message, fds));
  while (!output_.empty()) {
    LOWERD_RETURN_IF_ERROR(SendSome(output_.front(), 0));
    if (output_.front().sent == output_.front().bytes.size()) output_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status Channel::Receive(google::protobuf::MessageLite& message, std::vector<Fd>* fds) {
  while (true) {
    LOWERD_ASSIGN_OR_RETURN(const bool complete, Next(message));
    if (complete) break;
    LOWERD_RETURN_IF_ERROR(ReceiveSome(kReadBytes, fds != nullptr, 0));
  }
  if (fds != nullptr) {
    fds->clear();
    for (Fd& fd : input_fds_) fds->push_back(std::move(fd));
    input_fds_.clear();
  }
  return absl::OkStatus();
}

absl::Status Channel::Queue(const google::protobuf::MessageLite& message,
                            absl::Span<const int> fds) {
  LOWERD_ASSIGN_OR_RETURN(std::string bytes, Encode(message, fds));
  output_.push_back({std::move(bytes), 0, std::vector<int>(fds.begin(), fds.end())});
  return absl::OkStatus();
}

absl::Status Channel::Flush() {
  while (!output_.empty()) {
    Output& output = output_.front();
    const size_t before = output.sent;
    LOWERD_RETURN_IF_ERROR(SendSome(output, MSG_DONTWAIT));
    if (output.sent == output.bytes.size()) {
      output_.pop_front();
    } else if (output.sent == before) {
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Channel::Fill(bool take_fds) {
  size_t total = 0;
  while (total < kMaxFillBytes) {
    const size_t before = input_.size() - input_begin_;
    LOWERD_RETURN_IF_ERROR(ReceiveSome(kReadBytes, take_fds, MSG_DONTWAIT));
    const size_t got = input_.size() - before;
    if (got == 0) break;
    total += got;
    if (got < kReadBytes) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Channel::Next(google::protobuf::MessageLite& message) {
  const size_t available = input_.size() - input_begin_;
  if (available < kHeaderBytes) return false;
  const size_t length = DecodeLength(input_.data() + input_begin_);
  if (length > kMaxFrameBytes) {
    return MakeError(Reason::kInternalError,
                     absl::StrCat("a worker channel announces a frame of ", length, " bytes"));
  }
  if (available - kHeaderBytes < length) return false;
  const char* body = input_.data() + input_begin_ + kHeaderBytes;
  if (!message.ParseFromArray(body, static_cast<int>(length))) {
    return MakeError(Reason::kInternalError, "a worker channel carries a malformed frame");
  }
  input_begin_ += kHeaderBytes + length;
  return true;
}

absl::StatusOr<std::vector<Fd>> Channel::TakeFds(size_t count) {
  if (input_fds_.size() < count) {
    return MakeError(Reason::kInternalError, "a worker frame came without its file descriptors");
  }
  std::vector<Fd> out;
  for (size_t i = 0; i < count; ++i) {
    out.push_back(std::move(input_fds_.front()));
    input_fds_.pop_front();
  }
  return out;
}

}  // namespace lowerd::pool
