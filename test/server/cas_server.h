#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "server/byte_stream_service.h"
#include "server/cas_service.h"
#include "src/base/thread_pool.h"
#include "src/blob/blob_store.h"

namespace lowerd::test {

// A REAPI CAS on a port of loopback, over any blob store: the blob services of a lowerd.
class CasServer {
 public:
  // `port` 0 picks one. The store must outlive this object.
  explicit CasServer(blob::BlobStore& blobs, int port = 0)
      : byte_stream_(blobs, threads_), cas_(blobs, threads_), capabilities_(int64_t{1} << 40) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&byte_stream_);
    builder.RegisterService(&cas_);
    builder.RegisterService(&capabilities_);
    server_ = builder.BuildAndStart();
  }
  ~CasServer() {
    server_->Shutdown();
    server_->Wait();
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  server::ByteStreamService byte_stream_;
  server::CasService cas_;
  server::CapabilitiesService capabilities_;
  // Ends its tasks before the services go.
  ThreadPool threads_{4};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace lowerd::test
