#include "trainer/parallel/late_operation.h"

#include <cstring>

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {
namespace {

std::span<std::byte> span_of(const Tensor& values) {
  return {static_cast<std::byte*>(values.raw()),
          static_cast<std::size_t>(values.elements()) * dtype_bytes(values.dtype())};
}

void copy_out(const Tensor& values, std::byte* to) {
  const std::span<std::byte> from = span_of(values);
  Device device = values.device();
  if (memory_is_apart(device)) return make_device_memory(device)->read(from.data(), {to, from.size()});
  const OpenMemory open(device);
  std::memcpy(to, from.data(), from.size());
}

void copy_back(const std::byte* from, const Tensor& values) {
  const std::span<std::byte> to = span_of(values);
  Device device = values.device();
  if (memory_is_apart(device)) return make_device_memory(device)->write({from, to.size()}, to.data());
  const OpenMemory open(device);
  std::memcpy(to.data(), from, to.size());
}

}  // namespace

LateOperation::LateOperation(const GroupRanks& group, Engine& engine, std::string what,
                             Tensor input, Tensor output, Event ready, Make make)
    : Operation(group, std::move(what)),
      engine_(engine),
      input_(std::move(input)),
      output_(std::move(output)),
      ready_(std::move(ready)),
      make_(std::move(make)) {}

LateOperation::~LateOperation() {
  begun_.reset();
  for (Engine::ScratchBlock* block : {&copy_, &result_copy_})
    if (block->memory) engine_.give_scratch(std::move(*block));
}

void LateOperation::begin() {
  std::span<std::byte> input = span_of(input_), output = span_of(output_);
  if (input_.device().kind != DeviceKind::cpu) {
    copy_ = engine_.take_scratch(input.size());
    copy_out(input_, copy_.memory.get());
    const bool one = input.data() == output.data() && input.size() == output.size();
    if (!one) result_copy_ = engine_.take_scratch(output.size());
    input = {copy_.memory.get(), input.size()};
    output = one ? input : std::span(result_copy_.memory.get(), output.size());
  }
  begun_ = make_(input, output);
}

bool LateOperation::advance() {
  if (!begun_) {
    if (!ready_.poll()) return false;
    begin();
  }
  if (!begun_->advance()) return false;
  if (copy_.memory)
    copy_back((result_copy_.memory ? result_copy_ : copy_).memory.get(), output_);
  return true;
}

std::vector<int> LateOperation::missing() {
  if (!begun_) return {group_.world_ranks[static_cast<std::size_t>(group_.rank)]};
  return begun_->missing();
}

}  // namespace sortie::trainer
