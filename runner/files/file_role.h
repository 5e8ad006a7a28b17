// FileRole: what a runner does with files for its launcher: receive a tree, stage one, send some.
#pragma once

#include <functional>
#include <memory>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

class FileRole {
 public:
  /// The transfer can not go on; told once, from a coroutine.
  using FailureHandler = std::function<void(Error)>;

  virtual ~FileRole() = default;
  /// Begins. Error: an order that can not be carried out.
  virtual Result<> open(const wire::FilesOpen& order) = 0;
  /// A message of the transfer. Error: outside the protocol, or the disk.
  virtual Result<> take(const wire::Message& message) = 0;
  /// Where a staged tree lies, once it is there.
  virtual std::string staged_folder() const { return ""; }
};

}  // namespace sortie::runner
