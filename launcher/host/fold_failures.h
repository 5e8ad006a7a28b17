// Failures of many hosts in few lines: equal ones once.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sortie::launcher {

struct FoldedFailure {
  std::vector<std::string> hosts;
  std::string text;
};

/// `failures`: {host, what failed there}, in host order. Equal ones are one entry, in the order of
/// their first hosts. Texts that differ only in the host's own name or in network addresses are
/// equal; <host> and <address> stand for those in the text of several.
std::vector<FoldedFailure> fold_failures(
    const std::vector<std::pair<std::string, std::string>>& failures);

/// The same of texts that must be equal to the byte: answers, not failures.
std::vector<FoldedFailure> fold_equal(
    const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace sortie::launcher
