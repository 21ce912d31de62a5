#include "server/lowering_request.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace lowerd::server {
namespace {

const std::vector<std::string> kBackends = {"acme", "reference"};

v1::LowerModelRequest Minimal() {
  v1::LowerModelRequest request;
  *request.mutable_model() = DigestToProto(Digest::Of("model"));
  return request;
}

v1::Producer Toolchain(const std::string& version = "1") {
  v1::Producer producer;
  producer.set_lowerd_version(version);
  return producer;
}

absl::StatusOr<LoweringRequest> Parse(const v1::LowerModelRequest& request,
                                      const v1::Producer& toolchain = Toolchain()) {
  return ParseLoweringRequest(request, MakeToolchain(toolchain, kBackends), RequestLimits());
}

std::string Key(const v1::LowerModelRequest& request) {
  auto parsed = Parse(request);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->action_key : "";
}

v1::Target* AddTarget(v1::LowerModelRequest& request, const std::string& path) {
  v1::Target* target = request.add_targets();
  target->set_path(path);
  return target;
}

TEST(LoweringRequestTest, NothingAskedForMeansTheRootByReferenceAsTorchScript) {
  auto parsed = Parse(Minimal());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->canonical.targets_size(), 1);
  const v1::Target& target = parsed->canonical.targets(0);
  EXPECT_TRUE(target.has_path());
  EXPECT_EQ(target.path(), "");
  EXPECT_EQ(target.backend(), "reference");
  ASSERT_EQ(target.methods_size(), 1);
  EXPECT_EQ(target.methods(0).name(), "forward");
  EXPECT_TRUE(target.methods(0).compile_spec().has_string());
  ASSERT_EQ(parsed->canonical.formats_size(), 1);
  EXPECT_EQ(parsed->canonical.formats(0), v1::TORCHSCRIPT);
  EXPECT_EQ(parsed->timeout, RequestLimits().default_timeout);
}

TEST(LoweringRequestTest, KeyIgnoresOrderSpelledOutDefaultsAndHowTheRequestIsRun) {
  v1::LowerModelRequest a = Minimal();
  AddTarget(a, "x");
  v1::Target* both = AddTarget(a, "y");
  both->add_methods()->set_name("forward");
  both->add_methods()->set_name("encode");
  a.add_formats(v1::FLATBUFFER);
  a.add_formats(v1::TORCHSCRIPT);

  v1::LowerModelRequest b = Minimal();
  both = AddTarget(b, "y");
  both->set_backend("reference");
  v1::Method* encode = both->add_methods();
  encode->set_name("encode");
  encode->mutable_compile_spec()->set_string("");
  both->add_methods()->set_name("forward");
  AddTarget(b, "x")->set_backend("reference");
  b.add_formats(v1::TORCHSCRIPT);
  b.add_formats(v1::FLATBUFFER);
  b.add_formats(v1::TORCHSCRIPT);
  b.set_request_id("id");
  b.set_priority(5);
  b.set_instance_name("main");
  b.set_cache_policy(v1::BYPASS);
  b.mutable_timeout()->set_seconds(5);
  b.set_artifact_stem("model");
  EXPECT_EQ(Key(a), Key(b));
}

TEST(LoweringRequestTest, KeyDependsOnEverythingThatTheArtifactsDependOn) {
  v1::LowerModelRequest base = Minimal();
  AddTarget(base, "x");
  std::vector<std::string> keys = {Key(base)};
  auto vary = [&](auto change) {
    v1::LowerModelRequest other = base;
    change(other);
    const std::string key = Key(other);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), key), 0) << other.ShortDebugString();
    keys.push_back(key);
  };
  vary([](auto& r) { *r.mutable_model() = DigestToProto(Digest::Of("other")); });
  vary([](auto& r) { r.mutable_targets(0)->set_path("z"); });
  vary([](auto& r) { r.mutable_targets(0)->set_path_glob("x"); });
  vary([](auto& r) { r.mutable_targets(0)->set_original_type("x"); });
  vary([](auto& r) { r.mutable_targets(0)->set_backend("acme"); });
  vary([](auto& r) { r.mutable_targets(0)->add_methods()->set_name("encode"); });
  vary([](auto& r) {
    auto* method = r.mutable_targets(0)->add_methods();
    method->set_name("forward");
    method->mutable_compile_spec()->set_int_(1);
  });
  vary([](auto& r) { r.add_formats(v1::FLATBUFFER); });
  vary([](auto& r) { r.set_debug_info(true); });
  vary([](auto& r) { r.set_require_full(true); });
  vary([](auto& r) { (*r.mutable_extra_files())["a"] = DigestToProto(Digest::Of("a")); });
  vary([](auto& r) { *r.add_sample_inputs()->mutable_inputs() = DigestToProto(Digest::Of("i")); });
  vary([](auto& r) { r.set_artifact_stem("other"); });

  auto other_toolchain = Parse(base, Toolchain("2"));
  ASSERT_TRUE(other_toolchain.ok());
  EXPECT_NE(other_toolchain->action_key, keys.front());
}

TEST(LoweringRequestTest, DotIsTheRoot) {
  v1::LowerModelRequest dot = Minimal(), empty = Minimal();
  AddTarget(dot, ".");
  AddTarget(empty, "");
  EXPECT_EQ(Key(dot), Key(empty));
}

TEST(LoweringRequestTest, InputsAreEveryBlobOnceTheModelFirst) {
  v1::LowerModelRequest request = Minimal();
  v1::Method* method = AddTarget(request, "x")->add_methods();
  method->set_name("forward");
  v1::Value* nested = method->mutable_compile_spec()->mutable_list()->add_values();
  *nested->mutable_dict()->add_entries()->mutable_key()->mutable_tensor() =
      DigestToProto(Digest::Of("tensor"));
  nested->mutable_dict()->mutable_entries(0)->mutable_value()->set_bool_(true);
  (*request.mutable_extra_files())["a"] = DigestToProto(Digest::Of("extra"));
  (*request.mutable_extra_files())["b"] = DigestToProto(Digest::Of("extra"));
  *request.add_sample_inputs()->mutable_inputs() = DigestToProto(Digest::Of("sample"));
  auto parsed = Parse(request);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->inputs, (std::vector<Digest>{Digest::Of("model"), Digest::Of("tensor"),
                                                 Digest::Of("extra"), Digest::Of("sample")}));
}

TEST(LoweringRequestTest, UnknownBackendNamesThoseThatThereAre) {
  v1::LowerModelRequest request = Minimal();
  AddTarget(request, "x")->set_backend("nosuch");
  const absl::Status status = Parse(request).status();
  EXPECT_TRUE(HasReason(status, Reason::kBackendNotFound));
  EXPECT_NE(status.message().find("acme, reference"), absl::string_view::npos) << status;
}

TEST(LoweringRequestTest, RefusesWhatIsMalformedAndNamesTheField) {
  auto refuses = [](const std::string& field, auto change) {
    v1::LowerModelRequest request = Minimal();
    AddTarget(request, "x");
    change(request);
    const absl::Status status = Parse(request).status();
    EXPECT_TRUE(HasReason(status, Reason::kInvalidRequest)) << field << ": " << status;
    EXPECT_NE(status.message().find(field), absl::string_view::npos) << status;
  };
  refuses("model", [](auto& r) { r.clear_model(); });
  refuses("model", [](auto& r) { r.mutable_model()->set_hash("zz"); });
  refuses("targets[1].path_glob", [](auto& r) { r.add_targets()->set_path_glob(""); });
  refuses("targets[0].methods[0]", [](auto& r) { r.mutable_targets(0)->add_methods(); });
  refuses("twice", [](auto& r) {
    r.mutable_targets(0)->add_methods()->set_name("forward");
    r.mutable_targets(0)->add_methods()->set_name("forward");
  });
  refuses("compile_spec", [](auto& r) {
    auto* method = r.mutable_targets(0)->add_methods();
    method->set_name("forward");
    method->mutable_compile_spec()->mutable_list()->add_values();
  });
  refuses("formats[0]", [](auto& r) { r.add_formats(static_cast<v1::Format>(99)); });
  refuses("extra_files", [](auto& r) { (*r.mutable_extra_files())["../a"]; });
  refuses("artifact_stem", [](auto& r) { r.set_artifact_stem("a/b"); });
  refuses("request_id", [](auto& r) { r.set_request_id(std::string(129, 'x')); });
  refuses("priority", [](auto& r) { r.set_priority(101); });
  refuses("timeout", [](auto& r) { r.mutable_timeout()->set_seconds(-1); });
}

TEST(LoweringRequestTest, DeeplyNestedValuesAreRefusedNotFollowed) {
  v1::LowerModelRequest request = Minimal();
  v1::Method* method = AddTarget(request, "x")->add_methods();
  method->set_name("forward");
  v1::Value* value = method->mutable_compile_spec();
  for (int i = 0; i < 80; ++i) value = value->mutable_list()->add_values();
  value->set_bool_(true);
  EXPECT_TRUE(HasReason(Parse(request).status(), Reason::kInvalidRequest));
}

}  // namespace
}  // namespace lowerd::server
