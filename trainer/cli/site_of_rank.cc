#include "trainer/cli/site_of_rank.h"

#include <utility>

#include "common/config/outer.h"
#include "trainer/outer/socket_coordinator.h"
#include "trainer/outer/tcp_links.h"

namespace sortie::trainer {

Result<std::optional<outer::Site>> site_of_rank(const config::JobConfig& job,
                                                const RankContext& rank) {
  if (rank.sites == 0) return std::nullopt;
  if (rank.socket_path.empty())
    return fail(ErrorCode::config,
                "SORTIE_SITES: without SORTIE_SOCKET there is nobody who decides about rounds; "
                "start the job with `sortie run`");
  outer::Site site;
  site.name = rank.site;
  site.index = rank.site_index;
  site.count = rank.sites;
  site.settings = config::resolve_outer(job, rank.sites);
  site.make_coordinator =
      [path = rank.socket_path](std::int64_t) -> Result<std::unique_ptr<outer::Coordinator>> {
    return outer::SocketCoordinator::make(path);
  };
  site.make_links = [name = rank.site, streams = site.settings.streams, port = job.outer.port](
                        std::int64_t part) -> Result<std::unique_ptr<outer::SiteLinks>> {
    outer::TcpLinksSettings settings;
    settings.site = name;
    settings.part = part;
    settings.streams = streams;
    // Leaders of one host each need their own.
    if (port > 0) settings.port = static_cast<std::uint16_t>(port + part);
    return outer::TcpLinks::make(std::move(settings));
  };
  return site;
}

void narrow_to_site(config::JobConfig& job, const outer::Site& site) {
  job.topology = config::topology_of_site(job.topology, site.count);
  if (!job.trainer.save_dir.empty()) job.trainer.save_dir += "/site-" + site.name;
}

}  // namespace sortie::trainer
