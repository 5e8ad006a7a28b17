// Frames to and from the runner over two non-blocking descriptors: the server must keep reading
// while the runner reads slowly.
#pragma once

#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"

namespace sortie::runner {

class FramePipe {
 public:
  FramePipe(Fd in, Fd out);

  int in_fd() const { return in_.get(); }
  int out_fd() const { return out_.get(); }
  bool wants_write() const { return sent_ < pending_.size(); }

  /// Queues a message and writes what the descriptor accepts now.
  Result<> send(const wire::Message& message);
  /// Writes more of the queue.
  Result<> flush();
  /// Reads available bytes. Returns false at the end of the stream. Error: the stream ends within a
  /// frame, or a read fails.
  Result<bool> fill();
  /// The next complete message that was read by fill(); nullopt if there is none.
  Result<std::optional<wire::Message>> next();

 private:
  Fd in_;
  Fd out_;
  wire::FrameDecoder decoder_;
  std::string pending_;
  std::size_t sent_ = 0;
};

}  // namespace sortie::runner
