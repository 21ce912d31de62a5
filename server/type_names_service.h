#pragma once

#include "lowerd/v1/type_names.grpc.pb.h"
#include "src/base/thread_pool.h"
#include "src/names/type_name_registry.h"

namespace lowerd::server {

// lowerd.v1.TypeNames. Thread-safe; nothing blocks in a reactor.
class TypeNamesService final : public v1::TypeNames::CallbackService {
 public:
  // Both must outlive this object, which must outlive the gRPC server.
  TypeNamesService(names::TypeNameRegistry& registry, ThreadPool& pool)
      : registry_(registry), pool_(pool) {}

  grpc::ServerUnaryReactor* ResolveTypeName(grpc::CallbackServerContext* context,
                                            const v1::ResolveTypeNameRequest* request,
                                            v1::ResolveTypeNameResponse* response) override;
  grpc::ServerUnaryReactor* ListTypeNames(grpc::CallbackServerContext* context,
                                          const v1::ListTypeNamesRequest* request,
                                          v1::ListTypeNamesResponse* response) override;

 private:
  names::TypeNameRegistry& registry_;
  ThreadPool& pool_;
};

}  // namespace lowerd::server
