// What verbs print.
#pragma once

#include <string_view>

#include "common/base/result.h"

namespace sortie::cli {

/// The message of the error on stderr, with nothing in it that a terminal obeys; its exit code.
int print_error(const Error& error);

/// All of `text` on stdout or an error: a full disk must not leave half an answer and exit code 0.
/// `program` begins the message of that error.
int print_text(std::string_view program, std::string_view text);

}  // namespace sortie::cli
