// A runner that stays: a small single-threaded process that waits on its stdio. It runs each
// conversation in a child process, so that nothing of one conversation (memory, descriptors,
// environment, secrets) remains for the next. common/wire/serving.h has the frames between
// conversations.
#pragma once

#include <functional>

#include "common/base/fd.h"

namespace sortie::runner {

/// What the process of a conversation does.
struct Conversation {
  std::function<void()> prepare;  // before its conversation begins, if it was forked in advance
  std::function<int(Fd in, Fd out)> hold;  // with the stream; returns the exit code
};

/// Serves until the stream ends, the terms expire, a conversation ends with an error, or a signal
/// arrives. Call after become_runner(), which blocks all signals. Returns the exit code of the
/// process. A child gets SIGTERM when this process dies.
int serve_conversations(Fd in, Fd out, const Conversation& conversation);

}  // namespace sortie::runner
