#include "trainer/parallel/late_operation.h"

#include <cstring>

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {
namespace {

std::span<std::byte> memory_of(const Tensor& values) {
  return {static_cast<std::byte*>(values.raw()),
          static_cast<std::size_t>(values.elements()) * dtype_bytes(values.dtype())};
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
  std::span<std::byte> input = memory_of(input_), output = memory_of(output_);
  if (input_.device().kind != DeviceKind::cpu) {
    copy_ = engine_.take_scratch(input.size());
    {
      const OpenMemory open(input_.device());
      std::memcpy(copy_.memory.get(), input.data(), input.size());
    }
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
  if (copy_.memory) {
    const OpenMemory open(output_.device());
    const std::span<std::byte> to = memory_of(output_);
    const auto& from = result_copy_.memory ? result_copy_ : copy_;
    std::memcpy(to.data(), from.memory.get(), to.size());
  }
  return true;
}

std::vector<int> LateOperation::missing() {
  if (!begun_) return {group_.world_ranks[static_cast<std::size_t>(group_.rank)]};
  return begun_->missing();
}

}  // namespace sortie::trainer
