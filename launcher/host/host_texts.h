// Words of a host, made fit for messages and files of ours: whatever a runner sends passes here
// before anybody else sees it.
#pragma once

#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::launcher {

/// Cuts the texts of `message` to what a person would read. Errors, progress and notices, which are
/// shown to one, lose their control characters too (lines stay lines).
void bound_texts(wire::Message& message);

/// What a program wrote last before it ended, at most about 1000 bytes on one line; for a message.
std::string last_words(std::string_view stderr_tail);

/// At most 1000 bytes of what a host says, on one line; for a table or a message.
std::string one_line(std::string text);

/// How a rank ended.
ProcessStatus status_of(const wire::RankExited& exited);
/// What lack of memory has to do with it, to follow its status in a message; "" for nothing.
std::string_view oom_text(const wire::RankExited& exited);

/// The class of what a runner reports; `runner` when it is none that concerns the launcher.
ErrorCode runner_error_code(const wire::RunnerError& error);

/// When the message was sent, or what it tells of happened, by the host's clock; 0 when it does not
/// say.
std::uint64_t time_in(const wire::Message& message);

}  // namespace sortie::launcher
