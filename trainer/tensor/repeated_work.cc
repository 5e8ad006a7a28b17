#include "trainer/tensor/repeated_work.h"

#include <utility>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace {

/// Runs op by op before a capture. The first ones load libraries and choose algorithms; the last
/// one must have needed no new memory.
constexpr int kBeforeCapture = 2;
/// After so many runs without such a one, the memory of the work is considered different each time.
constexpr int kMostUnsettled = 16;

}  // namespace

void RepeatedWork::forget() {
  parts_.clear();
  times_ = settled_ = 0;
}

void RepeatedWork::run_ops(ExecutionContext& context, const std::function<void()>& ops) {
  const Allocator& allocator = context.allocator();
  const std::size_t taken = allocator.system_allocations();
  const std::uint64_t version = allocator.repeated_version();
  {
    const Allocator::RepeatedMemory memory(context.allocator());
    ops();
  }
  ++times_;
  const bool same =
      taken == allocator.system_allocations() && version == allocator.repeated_version();
  settled_ = same ? settled_ + 1 : 0;
}

bool RepeatedWork::capture(ExecutionContext& context, const std::function<void()>& ops,
                           const std::function<void()>& undo) {
  Streams& streams = *context.streams();
  const std::int64_t flop = context.flop();
  const auto failed = [&](const char* why) {
    streams.drop_capture();
    parts_.clear();
    context.count_flop(flop - context.flop());
    if (undo) undo();
    captures_ = false;
    failure_ = name_ + " is not a CUDA graph: " + why;
  };
  struct Capturing {
    RepeatedWork& work;
    ExecutionContext& context;
    Capturing(RepeatedWork& captured, ExecutionContext& by) : work(captured), context(by) {
      set(true);
    }
    ~Capturing() { set(false); }
    void set(bool captures) const {
      work.capturing_ = captures;
      context.set_captures(captures);
    }
  };
  const Allocator::RepeatedMemory memory(context.allocator());
  const Capturing capturing(*this, context);
  try {
    streams.begin_capture(context.stream());
    ops();
    parts_.push_back({streams.end_capture(), {}});
  } catch (const DeviceError& error) {
    failed(error.what());
    return false;
  } catch (const OutOfMemory& error) {
    failed(error.what());
    return false;
  } catch (...) {
    streams.drop_capture();
    parts_.clear();
    throw;
  }
  flop_ = context.flop() - flop;
  return true;
}

void RepeatedWork::between(ExecutionContext& context, std::function<void()> act) {
  if (!capturing_) return act();
  Streams& streams = *context.streams();
  parts_.push_back({streams.end_capture(), std::move(act)});
  streams.begin_capture(context.stream());
}

void RepeatedWork::launch() {
  for (const Part& part : parts_) {
    part.graph->launch();
    if (part.act) part.act();
  }
}

RepeatedWork::Done RepeatedWork::run(ExecutionContext& context, const std::function<void()>& ops,
                                     const std::function<void()>& undo) {
  Allocator& allocator = context.allocator();
  if (is_graph() && version_ == allocator.repeated_version()) {
    context.count_flop(flop_);
    launch();
    return Done::as_graph;
  }
  if (is_graph()) forget();
  const bool can = captures_ && context.streams() != nullptr && context.streams()->captures();
  if (can && settled_ == 0 && times_ >= kMostUnsettled) {
    captures_ = false;
    failure_ = name_ + " is not a CUDA graph: its memory is not the same each time";
  }
  if (!can || times_ < kBeforeCapture || settled_ == 0 || !capture(context, ops, undo)) {
    run_ops(context, ops);
    return Done::op_by_op;
  }
  version_ = allocator.repeated_version();
  launch();
  return Done::op_by_op;  // `ops` was called, and that is what the caller needs to know
}

}  // namespace sortie::trainer
