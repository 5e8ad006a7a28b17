// How a person calls this program from here: what printed commands begin with, so that they can be
// copied and work.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sortie {

/// "sortie" where the shell finds this very program under that name, else its path: below the
/// current folder the relative one ("build/release/bin/sortie").
std::string command_name();

/// A command of this program for a shell: `words` quoted where they have to be.
std::string command_line(const std::vector<std::string>& words);

}  // namespace sortie
