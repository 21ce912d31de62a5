#pragma once

#include "server/html.h"
#include "server/http_server.h"
#include "src/blob/blob_store.h"
#include "src/jobs/job_service.h"
#include "src/names/type_name_registry.h"
#include "src/pool/worker_pool.h"

namespace lowerd::server {

// The pages for people: what goes on (/), one operation with what it lowered (/operations/{id}),
// what a type name means (/names). Readable without JavaScript, live with it. Reads what the
// services have; changes nothing and opens no model. Thread-safe; may block.
class StatusPage {
 public:
  // All must outlive this object.
  StatusPage(jobs::JobService& jobs, const pool::WorkerPool& workers, const blob::BlobStore& blobs,
             names::TypeNameRegistry& names)
      : jobs_(jobs), workers_(workers), blobs_(blobs), names_(names) {}

  // 404 for every path that is none of its own.
  HttpResponse Handle(const HttpRequest& request);

 private:
  Html Overview();
  Html Numbers() const;
  HttpResponse OperationPage(const HttpRequest& request);
  HttpResponse NamesPage(const HttpRequest& request);

  jobs::JobService& jobs_;
  const pool::WorkerPool& workers_;
  const blob::BlobStore& blobs_;
  names::TypeNameRegistry& names_;
};

}  // namespace lowerd::server
