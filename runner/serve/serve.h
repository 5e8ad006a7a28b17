// A runner that stays: a small process without threads that waits on its stdio and has each
// conversation held by a child process, so that nothing of one (memory, descriptors, environment,
// secrets) is there for the next. common/wire/serving.h has the frames between conversations.
#pragma once

#include <functional>

#include "common/base/fd.h"

namespace sortie::runner {

/// What a conversation's process does.
struct Conversation {
  std::function<void()> prepare;           // while it waits for its turn; not always
  std::function<int(Fd in, Fd out)> hold;  // with the stream; returns the exit code
};

/// Serves until the stream ends, the terms say so, a conversation ends in disorder or a signal
/// comes (after become_runner(): all are blocked); returns the exit code of the process. A child
/// gets the signal TERM when this process dies.
int serve_conversations(Fd in, Fd out, const Conversation& conversation);

}  // namespace sortie::runner
