// The token files of a job, with the keys that name them.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/config/validation_sets.h"

namespace sortie::trainer {

/// Calls `check(prefix, key)` for each token file of training and of validation, until one fails.
template <class Check>
Result<> for_each_token_file(const config::JobConfig& job, Check check) {
  for (const std::string& prefix : job.data.data_prefixes)
    SORTIE_TRY(check(prefix, std::string("data.data_prefixes")));
  for (const config::ValidationSet& set : config::validation_sets(job.data))
    for (const std::string& prefix : set.prefixes) SORTIE_TRY(check(prefix, set.key));
  return {};
}

}  // namespace sortie::trainer
