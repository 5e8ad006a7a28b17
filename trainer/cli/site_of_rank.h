// The site that a rank is part of, with its ways to the coordinator and to the other sites.
#pragma once

#include <optional>

#include "common/config/schema.h"
#include "trainer/loop/rank_context.h"
#include "trainer/outer/site.h"

namespace sortie::trainer {

/// Nothing where the job has no sites. ErrorCode::config where there is no runner that could ask the
/// coordinator.
Result<std::optional<outer::Site>> site_of_rank(const config::JobConfig& job,
                                                const RankContext& rank);

/// Makes `job` that of one site: its share of the global batch, and a folder of its own below
/// trainer.save_dir, because sites may share a file system.
void narrow_to_site(config::JobConfig& job, const outer::Site& site);

}  // namespace sortie::trainer
