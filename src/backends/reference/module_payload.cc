#include "src/backends/reference/module_payload.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/torch.h>

namespace lowerd::reference {
namespace {

using ObjectPtr = c10::intrusive_ptr<c10::ivalue::Object>;

bool HasOwnState(const c10::ClassType& type) { return type.hasMethod("__getstate__"); }

// Tensors that leave the archive. Sparse and quantised ones stay: they are more than a storage.
bool IsPlainTensor(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         tensor.device().is_cpu();
}

bool IsModule(const c10::IValue& value) {
  return value.isObject() && value.toObjectRef().type()->is_module();
}

// Calls `visit` for each slot that may hold a plain tensor, depth first, in slot order.
void VisitTensorSlots(const ObjectPtr& object,
                      const std::function<void(c10::ivalue::Object&, size_t)>& visit) {
  if (HasOwnState(*object->type())) return;
  for (size_t slot = 0; slot < object->slots().size(); ++slot) {
    const c10::IValue& value = object->getSlot(slot);
    if (IsModule(value)) {
      VisitTensorSlots(value.toObject(), visit);
    } else if (value.isTensor()) {
      visit(*object, slot);
    }
  }
}

// A copy of the module tree that shares types and values, with plain tensors replaced by empty ones
// of the same type. One object stays one object.
ObjectPtr CopyWithoutTensors(const ObjectPtr& object,
                             std::unordered_map<const c10::ivalue::Object*, ObjectPtr>& done) {
  if (HasOwnState(*object->type())) return object;
  const auto found = done.find(object.get());
  if (found != done.end()) return found->second;
  ObjectPtr copy = c10::ivalue::Object::create(
      c10::StrongTypePtr(object->compilation_unit(), object->type()), object->slots().size());
  for (size_t slot = 0; slot < object->slots().size(); ++slot) {
    const c10::IValue& value = object->getSlot(slot);
    if (IsModule(value)) {
      copy->setSlot(slot, CopyWithoutTensors(value.toObject(), done));
    } else if (IsPlainTensor(value)) {
      copy->setSlot(slot, at::empty({0}, value.toTensor().options()));
    } else {
      copy->setSlot(slot, value);
    }
  }
  done.emplace(object.get(), copy);
  return copy;
}

class MemoryReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryReader(at::Tensor bytes) : bytes_(std::move(bytes)) {}

  size_t size() const override { return static_cast<size_t>(bytes_.numel()); }
  size_t read(uint64_t pos, void* buffer, size_t n, const char*) const override {
    if (pos >= size()) return 0;
    const size_t count = std::min(n, size() - static_cast<size_t>(pos));
    std::memcpy(buffer, bytes_.data_ptr<uint8_t>() + pos, count);
    return count;
  }

 private:
  const at::Tensor bytes_;
};

}  // namespace

c10::IValue PackModule(const torch::jit::Module& module) {
  c10::List<at::Tensor> tensors;
  VisitTensorSlots(module._ivalue(), [&tensors](c10::ivalue::Object& object, size_t slot) {
    const c10::IValue& value = object.getSlot(slot);
    if (IsPlainTensor(value)) tensors.push_back(value.toTensor());
  });

  std::unordered_map<const c10::ivalue::Object*, ObjectPtr> done;
  std::string archive;
  torch::jit::ExportModule(torch::jit::Module(CopyWithoutTensors(module._ivalue(), done)),
                           [&archive](const void* data, size_t size) {
                             archive.append(static_cast<const char*>(data), size);
                             return size;
                           });
  at::Tensor bytes = at::empty({static_cast<int64_t>(archive.size())}, at::kByte);
  std::memcpy(bytes.data_ptr<uint8_t>(), archive.data(), archive.size());
  return c10::ivalue::Tuple::create(std::move(bytes), std::move(tensors));
}

torch::jit::Module UnpackModule(const c10::IValue& payload) {
  TORCH_CHECK(payload.isTuple() && payload.toTupleRef().elements().size() == 2 &&
                  payload.toTupleRef().elements()[0].isTensor() &&
                  payload.toTupleRef().elements()[1].isList(),
              "this module was not lowered by lowerd's reference backend");
  const auto& elements = payload.toTupleRef().elements();
  const at::Tensor bytes = elements[0].toTensor().contiguous();
  TORCH_CHECK(bytes.scalar_type() == at::kByte, "the reference backend's archive is not bytes");
  torch::jit::Module module = torch::jit::load(std::make_shared<MemoryReader>(bytes));

  const c10::List<c10::IValue> tensors = elements[1].toList();
  size_t next = 0;
  VisitTensorSlots(module._ivalue(), [&](c10::ivalue::Object& object, size_t slot) {
    const c10::IValue& value = object.getSlot(slot);
    if (!IsPlainTensor(value)) return;
    TORCH_CHECK(next < tensors.size(), "the reference backend's payload lacks tensors");
    object.setSlot(slot, tensors.get(next++));
  });
  TORCH_CHECK(next == tensors.size(), "the reference backend's payload has too many tensors");
  return module;
}

}  // namespace lowerd::reference
