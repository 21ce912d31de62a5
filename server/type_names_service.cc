#include "server/type_names_service.h"

#include <vector>

#include "server/lowering_request.h"
#include "server/unary_call.h"
#include "src/base/error.h"
#include "src/base/type_name.h"

namespace lowerd::server {
namespace {

v1::TypeNameOrigin ToProto(const names::NamedOrigin& named) {
  v1::TypeNameOrigin out;
  const names::Origin& origin = named.origin;
  out.set_lowered_type(MangledName(origin.base_name, named.mangle));
  out.set_wrapper_type(WrapperNameOf(out.lowered_type()));
  *out.mutable_model() = DigestToProto(origin.model);
  out.set_module_path(origin.module_path);
  out.set_backend(origin.backend);
  out.set_backend_version(origin.backend_version);
  out.set_original_type(origin.original_type);
  out.set_compile_spec_sha256(origin.compile_spec_sha256);
  out.set_operation(origin.operation);
  const int64_t micros = absl::ToUnixMicros(named.claimed);
  out.mutable_claim_time()->set_seconds(micros / 1'000'000);
  out.mutable_claim_time()->set_nanos(static_cast<int32_t>(micros % 1'000'000 * 1000));
  return out;
}

}  // namespace

grpc::ServerUnaryReactor* TypeNamesService::ResolveTypeName(
    grpc::CallbackServerContext*, const v1::ResolveTypeNameRequest* request,
    v1::ResolveTypeNameResponse* response) {
  return RunBlocking(pool_, [this, request, response](const Cancellation&) -> absl::Status {
    if (request->name().empty()) return FieldError("name", "is required");
    LOWERD_ASSIGN_OR_RETURN(const std::vector<names::NamedOrigin> origins,
                            registry_.Resolve(request->name()));
    if (origins.empty()) return NotFoundError("type name", request->name());
    for (const names::NamedOrigin& origin : origins) *response->add_origins() = ToProto(origin);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TypeNamesService::ListTypeNames(grpc::CallbackServerContext*,
                                                          const v1::ListTypeNamesRequest* request,
                                                          v1::ListTypeNamesResponse* response) {
  return RunBlocking(pool_, [this, request, response](const Cancellation&) -> absl::Status {
    LOWERD_ASSIGN_OR_RETURN(
        const names::TypeNameRegistry::Page page,
        registry_.List(request->prefix(), request->page_size(), request->page_token()));
    for (const names::NamedOrigin& origin : page.names) *response->add_origins() = ToProto(origin);
    response->set_next_page_token(page.next_page_token);
    return absl::OkStatus();
  });
}

}  // namespace lowerd::server
