// Error messages of loading a job's text.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/config/load.h"

namespace sortie::test {

inline std::string errors_of(std::string_view text,
                             const std::vector<std::string>& overrides = {}) {
  const auto loaded = config::load_job_text(text, "job.toml", overrides);
  if (loaded) return "no error";
  CHECK(loaded.error().code == ErrorCode::config);
  return loaded.error().message;
}

inline std::string set_error(const std::string& override_text) {
  return errors_of("", {override_text});
}

}  // namespace sortie::test
