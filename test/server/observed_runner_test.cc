#include "server/observed_runner.h"

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

using testing::HasSubstr;
using testing::Not;

// Goes through the given states and ends with the given status.
class FakeRunner final : public jobs::JobRunner {
 public:
  FakeRunner(std::vector<jobs::State> states, absl::Status end)
      : states_(std::move(states)), end_(std::move(end)) {}

  absl::StatusOr<jobs::JobResult> Run(
      const jobs::Operation&, const Cancellation&,
      const std::function<void(const jobs::Progress&)>& progress) override {
    for (const jobs::State state : states_) progress({state, 0, 1});
    if (!end_.ok()) return end_;
    return jobs::JobResult{"result", {}, true};
  }

 private:
  const std::vector<jobs::State> states_;
  const absl::Status end_;
};

class ObservedRunnerTest : public testing::Test {
 protected:
  absl::StatusOr<jobs::JobResult> Run(std::vector<jobs::State> states, absl::Status end) {
    FakeRunner fake(std::move(states), std::move(end));
    ObservedRunner runner(fake, metrics_, traces_);
    return runner.Run(operation_, Cancellation(),
                      [this](const jobs::Progress& p) { seen_.push_back(p.state); });
  }

  Metrics metrics_;
  OperationTraces traces_{10};
  jobs::Operation operation_;
  std::vector<jobs::State> seen_;
};

TEST_F(ObservedRunnerTest, CountsEachPhaseOnceAndPassesEverythingOn) {
  operation_.created = absl::Now();
  operation_.attempt = 1;
  const auto result = Run({jobs::State::kLoading, jobs::State::kLowering, jobs::State::kLowering,
                           jobs::State::kSerializing, jobs::State::kVerifying},
                          absl::OkStatus());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->result, "result");
  EXPECT_EQ(seen_.size(), 5u);
  const std::string text = metrics_.Text();
  for (const char* phase : {"QUEUED", "LOADING", "LOWERING", "SERIALIZING", "VERIFYING"}) {
    EXPECT_THAT(
        text, HasSubstr(std::string("lowerd_job_phase_seconds_count{phase=\"") + phase + "\"} 1"));
  }
  EXPECT_THAT(text, HasSubstr("lowerd_jobs_total{reason=\"OK\"} 1"));
  EXPECT_THAT(text, HasSubstr("lowerd_job_seconds_count 1"));
}

TEST_F(ObservedRunnerTest, FailureCountsUnderItsReasonAndReachesTheCaller) {
  const auto result = Run({jobs::State::kLoading}, MakeError(Reason::kModelCorrupt, "damaged"));
  EXPECT_TRUE(HasReason(result.status(), Reason::kModelCorrupt));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("lowerd_jobs_total{reason=\"MODEL_CORRUPT\"} 1"));
  EXPECT_THAT(text, Not(HasSubstr("LOWERING")));
}

TEST_F(ObservedRunnerTest, JobThatComesBackAfterACrashSaysNothingOfTheQueue) {
  operation_.created = absl::Now() - absl::Hours(1);
  operation_.attempt = 2;
  ASSERT_TRUE(Run({}, absl::OkStatus()).ok());
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("{phase=\"QUEUED\"")));
}

TEST(OperationTracesTest, ForgetsTheOldestAndKeepsTheFirstTrace) {
  OperationTraces traces(2);
  traces.Remember("operations/1", "a");
  traces.Remember("operations/1", "b");
  EXPECT_EQ(traces.Find("operations/1"), "a");
  traces.Remember("operations/2", "c");
  traces.Remember("operations/3", "d");
  EXPECT_EQ(traces.Find("operations/1"), "");
  EXPECT_EQ(traces.Find("operations/2"), "c");
  EXPECT_EQ(traces.Find("operations/3"), "d");
}

}  // namespace
}  // namespace lowerd::server
