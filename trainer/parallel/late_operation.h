// A collective on memory that the transport can not use when it is asked for: its values are not
// there yet, or the host has no access to them.
#pragma once

#include <functional>
#include <memory>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// Begins when `ready` has passed. Takes its place among its group's operations at once, so that
/// they have one order on all ranks. Where the host has no access to the tensors' memory, the input
/// is copied out, the collective works on copies, and its result is copied back: the memory is
/// closed while messages are on their way.
class LateOperation final : public Operation {
 public:
  /// The operation proper, on these bytes.
  using Make = std::function<std::unique_ptr<Operation>(std::span<std::byte> input,
                                                        std::span<std::byte> output)>;

  /// Input and output may be one tensor; Make then gets its bytes twice.
  LateOperation(const GroupRanks& group, Engine& engine, std::string what, Tensor input,
                Tensor output, Event ready, Make make);
  ~LateOperation() override;
  bool advance() override;
  /// Before it has begun this rank itself: its own device is behind.
  std::vector<int> missing() override;

 private:
  void begin();

  Engine& engine_;
  const Tensor input_, output_;
  Event ready_;
  Make make_;
  Engine::ScratchBlock copy_, result_copy_;  // of a device's memory; one where both are one tensor
  std::unique_ptr<Operation> begun_;         // goes before what it works on
};

}  // namespace sortie::trainer
