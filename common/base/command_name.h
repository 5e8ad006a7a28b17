// How a user invokes this program from the current folder. Commands that Sortie prints begin with
// this name, so that they can be copied and run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sortie {

/// The program's file name ("sortie") if the shell finds this executable under it, else its path:
/// relative if it is below the current folder ("build/release/bin/sortie").
std::string command_name();

/// A command line of this program for a shell, with `words` quoted where necessary.
std::string command_line(const std::vector<std::string>& words);

}  // namespace sortie
