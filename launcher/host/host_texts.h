// Bounds and cleans the texts of a host before messages and files use them. Every message of a
// runner passes through bound_texts() first.
#pragma once

#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::launcher {

/// Truncates the texts of `message` to readable lengths. In errors, progress and notices, which are
/// shown to the user, also makes control characters visible; line breaks stay.
void bound_texts(wire::Message& message);

/// The last 1000 bytes or so that a program wrote to stderr, on one line, for a message.
std::string last_words(std::string_view stderr_tail);

/// The first 1000 bytes of `text`, on one line, for a table or a message.
std::string one_line(std::string text);

/// How a rank ended.
ProcessStatus status_of(const wire::RankExited& exited);
/// Text about an OOM kill that follows the exit status in a message; "" if there was none.
std::string_view oom_text(const wire::RankExited& exited);

/// Maps the code of a RunnerError to an ErrorCode; ErrorCode::runner for codes that the launcher
/// does not distinguish.
ErrorCode runner_error_code(const wire::RunnerError& error);

/// Time in `message` on the host's boot clock, in milliseconds; 0 if the message has none.
std::uint64_t time_in(const wire::Message& message);

}  // namespace sortie::launcher
