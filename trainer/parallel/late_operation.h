// A collective on memory that the transport can not use when it is asked for: its values are not
// there yet, or the host has no access to them.
#pragma once

#include <functional>
#include <memory>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// Begins when `ready` has passed. Takes its place among its group's operations at once, so that
/// they have one order on all ranks. Where the host has no access to the values' memory, they are
/// copied out, the collective works on the copy, and its result is copied back: the memory is
/// closed while messages are on their way.
class LateOperation final : public Operation {
 public:
  /// The operation proper, on these bytes.
  using Make = std::function<std::unique_ptr<Operation>(std::span<std::byte> values)>;

  LateOperation(const GroupRanks& group, Engine& engine, std::string what, Tensor values,
                Event ready, Make make);
  ~LateOperation() override;
  bool advance() override;
  /// Before it has begun this rank itself: its own device is behind.
  std::vector<int> missing() override;

 private:
  void begin();

  Engine& engine_;
  const Tensor values_;
  Event ready_;
  Make make_;
  Engine::ScratchBlock copy_;         // of a device's memory
  std::unique_ptr<Operation> begun_;  // goes before what it works on
};

}  // namespace sortie::trainer
