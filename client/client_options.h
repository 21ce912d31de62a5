#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace lowerd::client {

// How to reach a server. Value type.
struct ClientOptions {
  // "host:port", "host" (port 50051) or "unix:/path".
  std::string server = "127.0.0.1:50051";
  // REAPI instance of all blobs; usually empty.
  std::string instance_name;

  // TLS also on loopback and without any file.
  bool tls = false;
  // PEM files. Any of them turns TLS on. The certificate and its key go together (mTLS); without a
  // CA file the system's roots are trusted.
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  // File with a bearer token, sent with every call. Needs TLS.
  std::string token_file;
  // Plaintext also beyond loopback. Loopback and unix sockets are plaintext unless a TLS file is
  // given.
  bool insecure = false;

  // For one try of one unary call.
  absl::Duration call_timeout = absl::Seconds(60);
  // For one try of a transfer: call_timeout and the time the bytes take at this rate, in bytes a
  // second.
  int64_t minimum_transfer_rate = 256 << 10;
  // A watch is subscribed anew this often, so that a connection that died unnoticed cannot stall
  // it.
  absl::Duration watch_period = absl::Seconds(60);
  // HTTP/2 pings on a connection with calls in flight. Servers cut off clients that ping more often
  // than they allow; five minutes is what every gRPC server allows.
  absl::Duration keepalive = absl::Minutes(5);

  // Further tries of a call that failed with UNAVAILABLE and is safe to repeat; any progress of a
  // transfer or a watch starts the count anew.
  int retries = 5;
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration maximum_backoff = absl::Seconds(5);

  // Blobs transferred at once.
  int parallel_transfers = 4;
};

}  // namespace lowerd::client
