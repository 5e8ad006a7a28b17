// FileRole: the file transfers of a runner: receiving a tree, staging one, sending files.
#pragma once

#include <functional>
#include <memory>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

class FileRole {
 public:
  /// Called once, from a coroutine, when the transfer can not continue.
  using FailureHandler = std::function<void(Error)>;

  virtual ~FileRole() = default;
  /// Starts the transfer. Error: the order can not be carried out.
  virtual Result<> open(const wire::FilesOpen& order) = 0;
  /// Handles a message of the transfer. Error: it violates the protocol, or the disk failed.
  virtual Result<> take(const wire::Message& message) = 0;
  /// Path of the staged tree; empty until it is complete.
  virtual std::string staged_folder() const { return ""; }
};

}  // namespace sortie::runner
