// Frames to and from the runner over two descriptors, without blocking: the server must go on
// reading while the runner is slow to read.
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

  /// Queues a message and sends what the descriptor takes now.
  Result<> send(const wire::Message& message);
  /// Sends more of what is queued.
  Result<> flush();
  /// Reads what is there. False at the end of the stream; an end within a frame is an error.
  Result<bool> fill();
  /// Next whole message that fill() has brought.
  Result<std::optional<wire::Message>> next();

 private:
  Fd in_;
  Fd out_;
  wire::FrameDecoder decoder_;
  std::string pending_;
  std::size_t sent_ = 0;
};

}  // namespace sortie::runner
