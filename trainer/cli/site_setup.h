// Determines the site of a rank from its environment and its job: its samples, its folder, and how
// its leaders reach the other sites.
#pragma once

#include <optional>

#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"
#include "trainer/outer/site.h"

namespace sortie::trainer {

/// Converts the job of all sites to that of the rank's site: its share of the global batch, and a
/// separate folder for checkpoints. The name of the site replaces "{site}" in trainer.save_dir,
/// load_dir and load_weights_from; without "{site}" in save_dir, the folder is "site-NAME" below
/// it.
config::JobConfig job_of_site(config::JobConfig job, const RankContext& rank);

/// Returns nullopt without sites. `job` is the job of all sites. The site's factories reach the
/// coordinator through the runner's socket, and the other sites over TCP.
std::optional<outer::Site> site_of_rank(const config::JobConfig& job, const RankContext& rank);

}  // namespace sortie::trainer
