// Checks of the texts of violated config rules.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/config/validate.h"

namespace sortie::test {

/// "rule first-key: message" of each violation, one per line.
inline std::string text_of(const std::vector<config::Violation>& violations) {
  std::string text;
  for (const config::Violation& violation : violations) {
    if (!text.empty()) text += '\n';
    text += std::string(violation.rule) + " " + violation.keys.front() + ": " + violation.message;
  }
  return text;
}

/// A change to the default job, and the resulting text_of(validate()); "" if no rule is violated.
struct BrokenRule {
  std::function<void(config::JobConfig&)> change;
  const char* error;
};
inline void check_rules(std::span<const BrokenRule> rows) {
  for (const BrokenRule& row : rows) {
    config::JobConfig job;
    row.change(job);
    CHECK(text_of(config::validate(job)) == row.error);
  }
}

}  // namespace sortie::test
