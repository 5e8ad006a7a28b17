#include "trainer/parallel/late_operation.h"

#include <cstring>

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {
namespace {

std::size_t byte_count(const Tensor& values) {
  return static_cast<std::size_t>(values.elements()) * dtype_bytes(values.dtype());
}

}  // namespace

LateOperation::LateOperation(const GroupRanks& group, Engine& engine, std::string what,
                             Tensor values, Event ready, Make make)
    : Operation(group, std::move(what)),
      engine_(engine),
      values_(std::move(values)),
      ready_(std::move(ready)),
      make_(std::move(make)) {}

LateOperation::~LateOperation() {
  begun_.reset();
  if (copy_.memory) engine_.give_scratch(std::move(copy_));
}

void LateOperation::begin() {
  const std::size_t bytes = byte_count(values_);
  auto* place = static_cast<std::byte*>(values_.raw());
  if (values_.device().kind != DeviceKind::cpu) {
    copy_ = engine_.take_scratch(bytes);
    const OpenMemory open(values_.device());
    std::memcpy(copy_.memory.get(), place, bytes);
    place = copy_.memory.get();
  }
  begun_ = make_({place, bytes});
}

bool LateOperation::advance() {
  if (!begun_) {
    if (!ready_.poll()) return false;
    begin();
  }
  if (!begun_->advance()) return false;
  if (copy_.memory) {
    const OpenMemory open(values_.device());
    std::memcpy(values_.raw(), copy_.memory.get(), byte_count(values_));
  }
  return true;
}

std::vector<int> LateOperation::missing() {
  if (!begun_) return {group_.world_ranks[static_cast<std::size_t>(group_.rank)]};
  return begun_->missing();
}

}  // namespace sortie::trainer
