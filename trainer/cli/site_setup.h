// The site of a rank, from its environment and its job: which samples, which folder, and how its
// leaders reach the others.
#pragma once

#include <optional>

#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"
#include "trainer/outer/site.h"

namespace sortie::trainer {

/// Makes a job of all sites that of the rank's: its share of the global batch, and a folder of its
/// own for checkpoints, "site-NAME" below trainer.save_dir, or where "{site}" stands in it.
config::JobConfig job_of_site(config::JobConfig job, const RankContext& rank);

/// Nothing without sites. `job` is the one of all sites. Its makers reach the coordinator and the
/// other sites by the runner's socket and over TCP.
std::optional<outer::Site> site_of_rank(const config::JobConfig& job, const RankContext& rank);

}  // namespace sortie::trainer
