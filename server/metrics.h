#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace lowerd::server {

// What happened, counted for Prometheus. What is the case now comes from sources that are asked at
// each scrape. Labels are of bounded number: methods, codes, phases and reasons, never what a
// caller sends. Thread-safe.
class Metrics {
 public:
  Metrics();

  // A gRPC call has ended. `method` is "/package.Service/Method" of a registered one, `code` the
  // name of its status code.
  void CountCall(const std::string& method, absl::string_view code, absl::Duration duration);
  // A call was refused before it reached a service, for this reason.
  void CountRefusal(absl::string_view reason);
  // A job has been in a phase ("QUEUED", "LOADING", ...) for so long.
  void ObservePhase(absl::string_view phase, absl::Duration duration);
  // A job has ended: "OK" or the reason of its error.
  void CountJob(absl::string_view reason, absl::Duration duration);

  // Asked at each scrape, on the scraping thread.
  void AddSource(std::shared_ptr<prometheus::Collectable> source);

  // All of it in Prometheus' text format.
  std::string Text() const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& calls_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Family<prometheus::Histogram>& call_seconds_;
  prometheus::Family<prometheus::Histogram>& phase_seconds_;
  prometheus::Family<prometheus::Counter>& jobs_;
  prometheus::Histogram& job_seconds_;
  // Set up before serving starts, not changed after.
  std::vector<std::shared_ptr<prometheus::Collectable>> sources_;
};

}  // namespace lowerd::server
