#include "src/lowering/sample_check.h"

#include <cmath>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include <torch/csrc/jit/mobile/import.h>
#include <torch/csrc/jit/mobile/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>

#include "src/base/error.h"
#include "src/lowering/compile_spec.h"
#include "src/lowering/torch_error.h"

namespace lowerd::lowering {
namespace {

constexpr double kRelative = 1e-5;
constexpr double kAbsolute = 1e-6;

std::vector<c10::IValue> Copied(const std::vector<c10::IValue>& values) {
  std::vector<c10::IValue> out;
  for (const c10::IValue& value : values) out.push_back(value.deepcopy());
  return out;
}

std::string TensorDifference(const at::Tensor& got, const at::Tensor& expected,
                             const std::string& where) {
  if (got.defined() != expected.defined()) return absl::StrCat(where, ": one is undefined");
  if (!got.defined()) return "";
  if (got.scalar_type() != expected.scalar_type() || got.sizes() != expected.sizes()) {
    std::ostringstream text;
    text << where << ": " << got.toString() << got.sizes() << " instead of " << expected.toString()
         << expected.sizes();
    return text.str();
  }
  const at::Tensor a = got.is_quantized() ? got.dequantize() : got.to_dense();
  const at::Tensor b = expected.is_quantized() ? expected.dequantize() : expected.to_dense();
  const bool exact = !a.is_floating_point() && !a.is_complex();
  const bool equal = exact ? at::equal(a, b) : at::allclose(a, b, kRelative, kAbsolute, true);
  return equal ? "" : absl::StrCat(where, ": the values differ");
}

}  // namespace

std::string FirstDifference(const c10::IValue& got, const c10::IValue& expected,
                            const std::string& where) {
  if (got.tagKind() != expected.tagKind()) {
    return absl::StrCat(where, ": ", got.tagKind(), " instead of ", expected.tagKind());
  }
  if (expected.isTensor()) return TensorDifference(got.toTensor(), expected.toTensor(), where);
  if (expected.isDouble()) {
    const double a = got.toDouble(), b = expected.toDouble();
    const bool equal = a == b || (std::isnan(a) && std::isnan(b)) ||
                       std::fabs(a - b) <= kAbsolute + kRelative * std::fabs(b);
    return equal ? "" : absl::StrCat(where, ": ", a, " instead of ", b);
  }
  auto elements = [](const c10::IValue& value) {
    return value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec();
  };
  if (expected.isTuple() || expected.isList()) {
    const std::vector<c10::IValue> a = elements(got), b = elements(expected);
    if (a.size() != b.size()) {
      return absl::StrCat(where, ": ", a.size(), " elements instead of ", b.size());
    }
    for (size_t i = 0; i < a.size(); ++i) {
      std::string difference = FirstDifference(a[i], b[i], absl::StrCat(where, "[", i, "]"));
      if (!difference.empty()) return difference;
    }
    return "";
  }
  if (expected.isGenericDict()) {
    const auto a = got.toGenericDict(), b = expected.toGenericDict();
    if (a.size() != b.size()) {
      return absl::StrCat(where, ": ", a.size(), " entries instead of ", b.size());
    }
    for (const auto& entry : b) {
      const auto found = a.find(entry.key());
      if (found == a.end()) return absl::StrCat(where, ": a key is missing");
      std::string difference = FirstDifference(found->value(), entry.value(), where + "[...]");
      if (!difference.empty()) return difference;
    }
    return "";
  }
  if (expected.isObject() || expected.isCapsule()) return "";
  return got == expected ? "" : absl::StrCat(where, ": the values differ");
}

absl::StatusOr<SampleCheck> SampleCheck::Run(const v1::LowerModelRequest& request,
                                             const JobFiles& files,
                                             const torch::jit::Module& model) {
  SampleCheck out;
  for (int i = 0; i < request.sample_inputs_size(); ++i) {
    const v1::SampleInput& sample = request.sample_inputs(i);
    const std::string what = absl::StrCat("sample_inputs[", i, "]");
    const auto blob = files.blobs.find(sample.inputs().hash());
    LOWERD_ASSIGN_OR_RETURN(
        const c10::IValue inputs,
        ReadTorchSave(blob != files.blobs.end() ? blob->second : files.model, what));
    if (!inputs.isTuple()) {
      return FieldError(what,
                        "does not hold a tuple of arguments; write it by torch.save((x,), file)");
    }
    Sample entry{sample.method(), inputs.toTupleRef().elements().vec(), c10::IValue()};
    LOWERD_RETURN_IF_ERROR(
        CatchTorch(Reason::kInvalidRequest, absl::StrCat("running the model on ", what), [&] {
          const torch::NoGradGuard no_grad;
          // Of a copy: methods may change buffers.
          torch::jit::Module copy = model.deepcopy();
          entry.expected = copy.get_method(entry.method)(Copied(entry.inputs));
          return absl::OkStatus();
        }));
    out.samples_.push_back(std::move(entry));
  }
  return out;
}

absl::Status CheckLiteLoads(v1::Format format, absl::string_view artifact) {
  return CatchTorch(
      Reason::kUnsupportedByFormat,
      absl::StrCat(
          "the lite interpreter cannot load this model as ", v1::Format_Name(format),
          " (NamedTuples or empty tuples of this shape are beyond it; ask for TORCHSCRIPT)"),
      [&] {
        std::istringstream stream{std::string(artifact)};
        torch::jit::_load_for_mobile(stream, c10::Device(c10::kCPU));
        return absl::OkStatus();
      });
}

absl::Status SampleCheck::Check(v1::Format format, absl::string_view artifact) const {
  if (!unavailable_.empty()) return absl::OkStatus();
  for (const Sample& sample : samples_) {
    const std::string what = absl::StrCat("running the ", v1::Format_Name(format), " artifact");
    LOWERD_RETURN_IF_ERROR(CatchTorch(Reason::kVerificationFailed, what, [&] {
      const torch::NoGradGuard no_grad;
      std::istringstream stream{std::string(artifact)};
      c10::IValue got;
      if (format == v1::TORCHSCRIPT) {
        got = torch::jit::load(stream).get_method(sample.method)(Copied(sample.inputs));
      } else {
        got = torch::jit::_load_for_mobile(stream, c10::Device(c10::kCPU))
                  .get_method(sample.method)(Copied(sample.inputs));
      }
      const std::string difference = FirstDifference(got, sample.expected, "output");
      if (!difference.empty()) {
        return MakeError(Reason::kVerificationFailed,
                         absl::StrCat("method ", sample.method, " of the ", v1::Format_Name(format),
                                      " artifact gives other values than the model: ", difference));
      }
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

void SampleCheck::Describe(v1::Manifest& manifest) const {
  for (const Sample& sample : samples_) {
    v1::Verification* entry = manifest.add_verifications();
    entry->set_check(absl::StrCat("outputs:", sample.method));
    entry->set_result(unavailable_.empty() ? "each artifact gives what the model gives"
                                           : absl::StrCat("not compared: backend ", unavailable_,
                                                          " is not available on this host"));
  }
}

}  // namespace lowerd::lowering
