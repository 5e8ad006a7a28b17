// Folds failures of many hosts: equal failures become one entry.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sortie::launcher {

struct FoldedFailure {
  std::vector<std::string> hosts;
  std::string text;
};

/// Folds `failures` ({host, message}, in host order). Equal messages become one entry, in the order
/// of their first hosts. Messages that differ only in the host's own name or in network addresses
/// are equal; the entry of several such messages has <host> and <address> in their place.
std::vector<FoldedFailure> fold_failures(
    const std::vector<std::pair<std::string, std::string>>& failures);

/// The same for texts that must be equal byte by byte, such as answers.
std::vector<FoldedFailure> fold_equal(
    const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace sortie::launcher
