// A collective whose memory the transport can not use yet when it is issued: the values are not
// computed yet, or they are in device memory.
#pragma once

#include <functional>
#include <memory>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// Begins when `ready` has passed. It is queued in its group at once, so that operations have the
/// same order on all ranks. If the host can not access the tensors' memory, the input is copied to
/// the host, the collective works on copies, and its result is copied back. All of this runs
/// concurrently with the device's streams.
class LateOperation final : public Operation {
 public:
  /// Creates the actual operation, on these bytes.
  using Make = std::function<std::unique_ptr<Operation>(std::span<std::byte> input,
                                                        std::span<std::byte> output)>;

  /// `input` and `output` may be one tensor; Make then gets its bytes twice. Either may be
  /// undefined; Make then gets an empty span for it. If `after` is not nullptr, this does not begin
  /// before it.
  LateOperation(const GroupRanks& group, std::string what, Tensor input, Tensor output, Event ready,
                Make make, std::shared_ptr<LateOperation> after = nullptr);
  bool advance() override;
  /// Returns this rank itself, except while messages are in flight: otherwise its own device is
  /// late.
  std::vector<int> missing() override;
  bool begun() const { return begun_ != nullptr; }

 private:
  enum class Stage : std::uint8_t { waiting, reading, moving, finishing, writing };
  /// Performs one step; false if none is possible now.
  bool advance_stage();
  bool start();

  const Tensor input_, output_;
  const Event ready_;
  Make make_;
  std::shared_ptr<LateOperation> after_;
  Stage stage_ = Stage::waiting;
  Event copied_;                                // end of the copy in progress
  std::shared_ptr<std::byte[]> copy_, result_;  // host copies of device memory
  std::span<std::byte> from_, to_;              // bytes that the operation works on
  std::unique_ptr<Operation> begun_;            // destroyed before its memory
};

}  // namespace sortie::trainer
