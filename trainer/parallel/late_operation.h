// A collective on memory that the transport can not use when it is asked for: its values are not
// there yet, or the host has no access to them.
#pragma once

#include <functional>
#include <memory>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// Begins when `ready` has passed. Takes its place among its group's operations at once, so that
/// they have one order on all ranks. Where the host has no access to the tensors' memory, the input
/// is copied out, the collective works on copies, and its result is copied back. All of that goes on
/// beside the device's streams.
class LateOperation final : public Operation {
 public:
  /// The operation proper, on these bytes.
  using Make = std::function<std::unique_ptr<Operation>(std::span<std::byte> input,
                                                        std::span<std::byte> output)>;

  /// Input and output may be one tensor; Make then gets its bytes twice. Either may be undefined,
  /// and Make gets no bytes for it. Does not begin before `after` has, which may be null.
  LateOperation(const GroupRanks& group, std::string what, Tensor input, Tensor output, Event ready,
                Make make, std::shared_ptr<LateOperation> after = nullptr);
  bool advance() override;
  /// Before it has begun this rank itself: its own device is behind.
  std::vector<int> missing() override;
  bool begun() const { return begun_ != nullptr; }

 private:
  enum class Stage : std::uint8_t { waiting, reading, moving, finishing, writing };
  /// What can be done now; false: nothing more.
  bool advance_stage();
  bool start();

  const Tensor input_, output_;
  const Event ready_;
  Make make_;
  std::shared_ptr<LateOperation> after_;
  Stage stage_ = Stage::waiting;
  Event copied_;                                    // of the copy under way
  std::shared_ptr<std::byte[]> copy_, result_;      // of a device's memory
  std::span<std::byte> from_, to_;                  // what the operation works on
  std::unique_ptr<Operation> begun_;                // goes before what it works on
};

}  // namespace sortie::trainer
