// Output of verbs: results on stdout, errors on stderr.
#pragma once

#include <string_view>

#include "common/base/result.h"

namespace sortie::cli {

/// Prints the message of the error on stderr, made safe for a terminal. Returns its exit code.
int print_error(const Error& error);

/// Prints all of `text` on stdout. Returns the exit code: a failed write, such as on a full disk,
/// is an error, so that incomplete output never exits with 0. `program` begins the message of that
/// error.
int print_text(std::string_view program, std::string_view text);

/// Writes what C's streams hold for stdout, at the end of a program. Returns `code`; if that is 0
/// and something could not be written, prints an error and returns its exit code. A reader that has
/// gone (EPIPE) needs nothing more.
int end_output(std::string_view program, int code);

}  // namespace sortie::cli
