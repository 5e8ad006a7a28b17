#include "trainer/parallel/late_operation.h"

#include "trainer/tensor/device_memory.h"

namespace sortie::trainer {
namespace {

std::span<std::byte> span_of(const Tensor& values) {
  if (!values.defined()) return {};
  return {static_cast<std::byte*>(values.raw()),
          static_cast<std::size_t>(values.elements()) * dtype_bytes(values.dtype())};
}

/// Whether the transport can not access the tensor's memory.
bool is_apart(const Tensor& values) {
  return values.defined() && values.device().kind != DeviceKind::cpu;
}

}  // namespace

LateOperation::LateOperation(const GroupRanks& group, std::string what, Tensor input, Tensor output,
                             Event ready, Make make, std::shared_ptr<LateOperation> after)
    : Operation(group, std::move(what)),
      input_(std::move(input)),
      output_(std::move(output)),
      ready_(std::move(ready)),
      make_(std::move(make)),
      after_(std::move(after)) {}

/// Returns false until the memory that the operation works on is ready and `after_` has begun.
bool LateOperation::start() {
  if (after_ && !after_->begun()) return false;
  after_.reset();
  // A result that is first received into a copy may arrive before the tensor is free for it.
  const bool early = !input_.defined() && is_apart(output_);
  if (!early && !ready_.poll()) return false;
  from_ = span_of(input_);
  to_ = span_of(output_);
  const bool one = from_.data() == to_.data() && from_.size() == to_.size();
  if (is_apart(input_)) {
    copy_ = host_block(input_.device(), from_.size());
    copied_ = begin_read(input_.device(), from_.data(), {copy_.get(), from_.size()});
    from_ = {copy_.get(), from_.size()};
  }
  if (is_apart(output_)) {
    if (!one) result_ = host_block(output_.device(), to_.size());
    to_ = one ? from_ : std::span(result_.get(), to_.size());
  }
  return true;
}

bool LateOperation::advance_stage() {
  switch (stage_) {
    case Stage::waiting:
      if (!start()) return false;
      stage_ = Stage::reading;
      return true;
    case Stage::reading:
      if (!copied_.poll()) return false;
      begun_ = make_(from_, to_);
      stage_ = Stage::moving;
      return true;
    case Stage::moving:
      if (!begun_->advance()) return false;
      stage_ = Stage::finishing;
      return true;
    case Stage::finishing:
      if (!ready_.poll()) return false;
      copied_ = is_apart(output_) ? begin_write(output_.device(), to_, output_.raw()) : Event();
      stage_ = Stage::writing;
      return true;
    case Stage::writing:
      break;
  }
  return false;
}

bool LateOperation::advance() {
  while (advance_stage()) {
  }
  return stage_ == Stage::writing && copied_.poll();
}

std::vector<int> LateOperation::missing() {
  if (stage_ != Stage::moving) return {group_.world_ranks[static_cast<std::size_t>(group_.rank)]};
  return begun_->missing();
}

}  // namespace sortie::trainer
