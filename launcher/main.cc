#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/heap.h"
#include "common/base/standard_files.h"
#include "common/cli/print.h"
#include "launcher/cli/cli.h"
#include "launcher/warm/keeper_process.h"

int main(int argc, char** argv) {
  sortie::open_closed_standard_files();
  sortie::keep_freed_pieces();
  try {
    // The background process that keeps connections, started by a command.
    if (argc > 1 && std::string_view(argv[1]) == sortie::launcher::warm::kKeeperWord)
      return sortie::launcher::warm::keep_connections({argv, static_cast<std::size_t>(argc)});
    return sortie::cli::end_output("sortie", sortie::launcher::run_cli(argc, argv));
  } catch (const boost::system::system_error& error) {
    const int number = error.code().value();
    const bool files = error.code().category() == boost::system::system_category() &&
                       (number == EMFILE || number == ENFILE);
    std::fprintf(stderr, "sortie: %s%s%s\n", files ? "" : "internal error: ", error.what(),
                 files ? "; raise the limit of open files (`ulimit -n`)" : "");
    return sortie::kExitFailed;
  } catch (const std::exception& error) {
    // Only an unexpected exception of a library arrives here: Sortie's own errors are values.
    std::fprintf(stderr, "sortie: internal error: %s\n", error.what());
    return sortie::kExitFailed;
  }
}
